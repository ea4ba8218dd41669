"""The blocking publisher, for scripts and commands: no event loop, no thread.

It keeps the promises of broker/publish/publisher.py (confirmed, mandatory, persistent, pipelined,
the same results) on pika. pika's own blocking connection waits for each confirm before it sends
the next message; here the connection is driven in the calling thread, and only while there is
something to wait for.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

from switchyard.broker.addresses import nodes_of
from switchyard.broker.errors import (
    BrokerUnavailable,
    LaneFull,
    PublishError,
    Refused,
)
from switchyard.broker.lanes import DEAD_EXCHANGE, JOBS_EXCHANGE
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.outcome import (
    BLOCKED_CONFIRM_TIMEOUT,
    Accepted,
    ConnectionFailureMemo,
    Outgoing,
    Result,
    SizeLimit,
    blocked_error,
    envelope_of,
    lane_full_error,
    overflow_letter,
    unconfirmed_error,
    unconfirmed_while_blocked_error,
    window_full_error,
)
from switchyard.broker.publish.session import PendingPublish, Session
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.wire.envelope import Envelope


class BlockingPublisher:
    """Publishes to the broker from one thread at a time; give each thread its own.

    Use it as a context manager, or call `close`. It connects at the first publish and again
    after a loss, and in a child that was forked; a publish never waits longer for a connection
    than the connect timeout.
    """

    def __init__(
        self, settings: BrokerSettings | None = None, *, name: str = "switchyard-blocking-publisher"
    ) -> None:
        """Use the settings of the environment (`JOBS_AMQP_URL` …) unless given. Raises
        ValueError where they name no broker."""
        settings = settings or BrokerSettings()
        settings.require_amqp_url()
        self._settings = settings
        self._window = settings.publish_window
        self._timeout = settings.confirm_timeout
        self._name = name
        self._session: Session | None = None
        self._size_limit = SizeLimit(settings.max_message_size)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; takes at most a second."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def publish(self, message: JobMessage, routing_key: str) -> Accepted:
        """Publish one job and wait for its confirm.

        Raises LaneFull, Unroutable, NeverTaken, NotPermitted, Blocked or BrokerUnavailable (all
        PublishError).
        """
        result = self.publish_many([Outgoing(message, routing_key)])[0]
        if isinstance(result, PublishError):
            raise result
        return result

    def publish_many(self, jobs: Iterable[Outgoing]) -> list[Result]:
        """Publish jobs, pipelined within the window; results in the order of the jobs."""
        return list(self.publish_stream(jobs))

    def publish_stream(self, jobs: Iterable[Outgoing]) -> Iterator[Result]:
        """Publish jobs as they come and yield their results in the same order.

        Holds at most a window of them in memory.
        """
        waiting: deque[tuple[Outgoing, PendingPublish | PublishError]] = deque()
        outage = ConnectionFailureMemo()
        for job in jobs:
            if len(waiting) >= self._window:
                for _ in range(max(len(waiting) // 2, 1)):
                    yield self._await_result(*waiting.popleft())
            sent = outage.error or self._send_job(job)
            outage.note(sent)
            waiting.append((job, sent))
        while waiting:
            yield self._await_result(*waiting.popleft())

    def _send_job(self, job: Outgoing) -> PendingPublish | PublishError:
        try:
            envelope = envelope_of(job.message)
            self._size_limit.check_job(len(envelope.body))
            return self._send(JOBS_EXCHANGE, job.routing_key, envelope)
        except PublishError as error:
            return error

    def _send(self, exchange: str, routing_key: str, envelope: Envelope) -> PendingPublish:
        was_idle = self._session is None or self._session.is_idle
        session = self._get_session()
        began = time.monotonic()
        while session.unconfirmed >= self._window and session.is_open:
            if session.is_blocked:
                raise blocked_error()
            if time.monotonic() - began >= self._timeout:
                raise window_full_error(self._timeout)
            # Down to half the window, so that publishes leave in groups and not one by one.
            session.drive(lambda: session.unconfirmed <= self._window // 2, BLOCKED_CONFIRM_TIMEOUT)
        sent = session.publish(exchange, routing_key, envelope)
        if was_idle:  # flush now: until the iterable gives the next job, nothing else is sent
            session.catch_up()
        return sent

    def _await_result(self, job: Outgoing, sent: PendingPublish | PublishError) -> Result:
        if isinstance(sent, PublishError):
            return sent
        try:
            try:
                self._wait_for_confirm(sent)
            except BrokerUnavailable as error:
                if not error.closed_by_some_message:
                    raise
                self._send_alone(JOBS_EXCHANGE, job.routing_key, envelope_of(job.message))
        except Refused:
            try:
                return self._settle_overflow(job)
            except PublishError as error:
                return error
        except PublishError as error:
            self._size_limit.learn(error)
            return error
        return Accepted(job.message.job_id, job.routing_key)

    def _send_alone(self, exchange: str, routing_key: str, envelope: Envelope) -> None:
        """Publish with nothing beside it and wait for the confirm: if the broker closes the channel
        now, it is the fault of this message."""
        self._size_limit.check(len(envelope.body))
        try:
            session = self._get_session()
            session.drive(lambda: not (session.unconfirmed and session.is_open), self._timeout)
            if session.unconfirmed:
                raise window_full_error(self._timeout)
            session = self._get_session()  # another one where that was lost
        except PublishError as error:  # the first sending may have arrived
            raise BrokerUnavailable(str(error), maybe_accepted=True) from error
        self._wait_for_confirm(session.publish(exchange, routing_key, envelope))

    def _settle_overflow(self, job: Outgoing) -> LaneFull:
        """Publish the dead letter of a refused job where the broker does not; return the error to
        raise."""
        letter = overflow_letter(job, self._settings.profile)
        if letter is not None:
            self._wait_for_confirm(self._send(DEAD_EXCHANGE, job.routing_key, letter))
        return lane_full_error(job.routing_key)

    def _wait_for_confirm(self, sent: PendingPublish) -> None:
        while not sent.done:
            waited = time.monotonic() - sent.at
            if waited >= BLOCKED_CONFIRM_TIMEOUT and sent.session.is_blocked:
                raise unconfirmed_while_blocked_error()
            if waited >= self._timeout:
                if len(nodes_of(self._settings.require_amqp_url())) > 1:
                    # A node that is cut off from its cluster takes messages and confirms none:
                    # connect again, perhaps to another.
                    self.close()
                raise unconfirmed_error(self._timeout)
            sent.session.drive(
                lambda: sent.done, min(BLOCKED_CONFIRM_TIMEOUT, self._timeout - waited)
            )
        if sent.error is not None:
            raise sent.error

    def _get_session(self) -> Session:
        session = self._session
        if session is not None:
            if session.is_idle:
                session.catch_up()
            if not session.is_open:
                self.close()
                session = None
        if session is None:
            session = self._session = Session.connect(self._settings, self._name)
        if session.is_blocked:
            raise blocked_error()
        return session
