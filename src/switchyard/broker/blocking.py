"""The blocking publisher, for scripts and commands: no event loop, no thread.

It keeps the promises of broker/publisher.py (confirmed, mandatory, persistent, pipelined, the
same results) on pika. pika's own blocking connection waits for each confirm before it sends the
next message; here the connection is driven in the calling thread, and only while there is
something to wait for.
"""

from __future__ import annotations

import ssl
import time
from base64 import b64decode
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

import pika
from pika.adapters.select_connection import IOLoop
from pika.adapters.utils.connection_workflow import (
    AMQPConnectionWorkflowFailed,
    AMQPConnectorPhaseErrorBase,
    AMQPConnectorStackTimeout,
)
from pika.channel import Channel
from pika.exceptions import ChannelWrongStateError, ConnectionOpenAborted, ShortStringTooLong
from pika.spec import Basic

from switchyard.broker.connection import CONNECT_TIMEOUT, address_of
from switchyard.broker.errors import BrokerAway, LaneFull, PublishError, Refused
from switchyard.broker.lanes import DEAD_EXCHANGE, JOBS_EXCHANGE
from switchyard.broker.message import JobMessage
from switchyard.broker.publisher import (
    PATIENCE,
    Accepted,
    Outage,
    Outgoing,
    Result,
    blocked,
    envelope_of,
    held,
    lane_full,
    letter_to_park,
    no_room,
    unconfirmed,
)
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.wire import Envelope, Unconfirmed

HEARTBEAT = 60
"""Seconds. Nobody answers heartbeats between two calls, so a publisher that rests for minutes
loses its connection; the next publish notices before it sends anything, and connects again."""
CLOSE_TIMEOUT = 1.0
"""Seconds to wait for the broker's answer when a connection is closed."""
_NO_ANSWER = f"no answer within {CONNECT_TIMEOUT:g} s"
CATCH_UP = 0.005
"""Seconds after which a publish first reads what has come in, and then leaves at once. Publishes
that follow each other faster leave in groups."""


@dataclass(slots=True, eq=False)
class _Sent:
    """A publish under way."""

    session: _Session
    at: float
    """Seconds, on the monotonic clock."""
    done: bool = False
    error: PublishError | None = None


class BlockingPublisher:
    """Publishes to the broker from one thread at a time; give each thread its own.

    Use it as a context manager, or call `close`. It connects at the first publish and again
    after a loss; a publish never waits longer for a connection than the connect timeout.
    """

    def __init__(
        self, settings: BrokerSettings, *, name: str = "switchyard-blocking-publisher"
    ) -> None:
        settings.require_amqp_url()
        self._settings = settings
        self._window = settings.publish_window
        self._timeout = settings.confirm_timeout
        self._name = name
        self._session: _Session | None = None

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

        Raises LaneFull, Unroutable, Blocked or BrokerAway (all PublishError).
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
        waiting: deque[tuple[Outgoing, _Sent | PublishError]] = deque()
        outage = Outage()
        for job in jobs:
            if len(waiting) >= self._window:
                for _ in range(max(len(waiting) // 2, 1)):
                    yield self._result(*waiting.popleft())
            started = outage.error or self._start(job)
            outage.note(started)
            waiting.append((job, started))
        while waiting:
            yield self._result(*waiting.popleft())

    def _start(self, job: Outgoing) -> _Sent | PublishError:
        try:
            return self._send(JOBS_EXCHANGE, job.routing_key, envelope_of(job.message))
        except PublishError as error:
            return error

    def _send(self, exchange: str, routing_key: str, envelope: Envelope) -> _Sent:
        rested = self._session is None or self._session.rested
        session = self._open()
        began = time.monotonic()
        while session.unconfirmed >= self._window and session.is_open:
            if session.is_blocked:
                raise blocked()
            if time.monotonic() - began >= self._timeout:
                raise no_room(self._timeout)
            # Down to half the window, so that publishes leave in groups and not one by one.
            session.drive(lambda: session.unconfirmed <= self._window // 2, PATIENCE)
        sent = session.publish(exchange, routing_key, envelope)
        if rested:  # the iterable may take as long for the next job
            session.catch_up()
        return sent

    def _result(self, job: Outgoing, sent: _Sent | PublishError) -> Result:
        if isinstance(sent, PublishError):
            return sent
        try:
            self._confirmed(sent)
        except Refused:
            try:
                return self._lane_full(job)
            except PublishError as error:
                return error
        except PublishError as error:
            return error
        return Accepted(job.message.job_id, job.routing_key)

    def _lane_full(self, job: Outgoing) -> LaneFull:
        letter = letter_to_park(job, self._settings.profile)
        if letter is not None:
            self._confirmed(self._send(DEAD_EXCHANGE, job.routing_key, letter))
        return lane_full(job.routing_key)

    def _confirmed(self, sent: _Sent) -> None:
        while not sent.done:
            waited = time.monotonic() - sent.at
            if waited >= PATIENCE and sent.session.is_blocked:
                raise held()
            if waited >= self._timeout:
                raise unconfirmed(self._timeout)
            sent.session.drive(lambda: sent.done, min(PATIENCE, self._timeout - waited))
        if sent.error is not None:
            raise sent.error

    def _open(self) -> _Session:
        session = self._session
        if session is not None:
            if session.rested:
                session.catch_up()
            if not session.is_open:
                self.close()
                session = None
        if session is None:
            session = self._session = _Session.opened(self._settings, self._name)
        if session.is_blocked:
            raise blocked()
        return session


class _Session:
    """One connection with one channel, from its opening to its loss.

    Everything happens inside `drive`: frames leave, frames arrive, callbacks are called.
    """

    def __init__(self, settings: BrokerSettings, name: str) -> None:
        self._unconfirmed: Unconfirmed[_Sent] = Unconfirmed()
        self._channel: Channel | None = None
        self._confirming = False
        self._loss = ""
        self._driven_at = 0.0
        self.is_blocked = False
        """The broker has said `connection.blocked` (a memory or disk alarm)."""
        parameters = _parameters(settings, name)
        self._loop = IOLoop()
        self._loop.activate_poller()
        self._connection = pika.SelectConnection(
            parameters,
            on_open_callback=self._on_open,
            on_open_error_callback=self._on_lost,
            on_close_callback=self._on_lost,
            custom_ioloop=self._loop,
        )
        self._connection.add_on_connection_blocked_callback(self._on_blocked)
        self._connection.add_on_connection_unblocked_callback(self._on_unblocked)

    @classmethod
    def opened(cls, settings: BrokerSettings, name: str) -> Self:
        """Connect. Raises BrokerAway after CONNECT_TIMEOUT seconds at the latest."""
        session = cls(settings, name)
        # A little more than pika's own time-out, which ends an attempt in better order.
        session.drive(lambda: session._confirming or bool(session._loss), CONNECT_TIMEOUT + 0.2)
        if session._confirming:
            return session
        reason = session._loss or _NO_ANSWER
        session.close()
        raise BrokerAway(
            f"can't connect to the broker at {address_of(settings.require_amqp_url())}: {reason}",
            maybe_accepted=False,
        )

    @property
    def is_open(self) -> bool:
        return self._channel is not None and self._channel.is_open and not self._loss

    @property
    def unconfirmed(self) -> int:
        """Publishes that wait for their confirm."""
        return len(self._unconfirmed)

    def publish(self, exchange: str, routing_key: str, envelope: Envelope) -> _Sent:
        """Send one persistent, mandatory message.

        Raises BrokerAway when the channel is closed, ValueError when a name or id is longer than
        AMQP allows (255 bytes).
        """
        properties = pika.BasicProperties(
            content_type=envelope.content_type,
            headers=envelope.headers,
            delivery_mode=2,
            priority=envelope.priority,
            message_id=envelope.message_id,
            timestamp=envelope.timestamp,
            type=envelope.type,
        )
        if self._channel is None or self._loss:
            raise BrokerAway("the channel is closed", maybe_accepted=False)
        try:
            self._channel.basic_publish(
                exchange, routing_key, envelope.body, properties, mandatory=True
            )
        except ChannelWrongStateError as error:
            raise BrokerAway("the channel is closed", maybe_accepted=False) from error
        except ShortStringTooLong as error:
            raise ValueError(f"AMQP takes at most 255 bytes here: {error}") from error
        sent = _Sent(self, time.monotonic())
        self._unconfirmed.sent(sent, envelope.message_id, exchange, routing_key)
        return sent

    def drive(self, until: Callable[[], bool], seconds: float) -> None:
        """Send and receive until a condition holds, at most for so many seconds."""
        deadline = time.monotonic() + seconds
        timer = self._loop.call_later(seconds, _wake)  # or a poll would last until data comes
        while not until() and time.monotonic() < deadline:
            self._turn()
        self._loop.remove_timeout(timer)

    @property
    def rested(self) -> bool:
        """Whether nothing was sent or received for a while."""
        return time.monotonic() - self._driven_at >= CATCH_UP

    def catch_up(self) -> None:
        """Send what has not left, and take notice of what has happened (a loss, an alarm)."""
        self._loop.call_later(0, _wake)
        self._turn()

    def close(self) -> None:
        """Close the connection; what waits for a confirm fails with BrokerAway."""
        if self._connection.is_open:
            self._connection.close()
        if self._connection.is_closing:
            self.drive(lambda: self._connection.is_closed, CLOSE_TIMEOUT)
        self._lose("it was closed")
        self._loop.close()

    def _turn(self) -> None:
        self._loop.poll()
        self._loop.process_timeouts()
        self._driven_at = time.monotonic()

    # --- what the broker says ---------------------------------------------------------------

    def _on_open(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._on_channel_open)

    def _on_channel_open(self, channel: Channel) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._on_lost)
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirm, self._on_confirming)

    def _on_confirming(self, _: object) -> None:
        self._confirming = True

    def _on_return(
        self, _: Channel, method: Basic.Return, properties: pika.BasicProperties, body: bytes
    ) -> None:
        self._unconfirmed.returned(
            properties.message_id or "", method.exchange or "", method.routing_key or ""
        )

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        self._settle(
            self._unconfirmed.confirmed(
                method.delivery_tag,
                multiple=bool(method.multiple),
                accepted=isinstance(method, Basic.Ack),
            )
        )

    def _on_blocked(self, connection: object, frame: object) -> None:
        self.is_blocked = True

    def _on_unblocked(self, connection: object, frame: object) -> None:
        self.is_blocked = False

    def _on_lost(self, _: object, error: BaseException) -> None:
        self._lose(_reason(error))

    def _lose(self, reason: str) -> None:
        self._loss = self._loss or reason
        self._settle(self._unconfirmed.lost(self._loss))

    def _settle(self, ended: Iterable[tuple[_Sent, PublishError | None]]) -> None:
        for sent, error in ended:
            sent.error = error
            sent.done = True


def _wake() -> None:
    """For timers that only end a poll."""


def _parameters(settings: BrokerSettings, name: str) -> pika.ConnectionParameters:
    """As the asyncio publisher connects: the same address means the same in both."""
    parts = urlsplit(settings.require_amqp_url())
    options = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    tls = parts.scheme == "amqps"
    return pika.ConnectionParameters(
        host=parts.hostname or "localhost",
        port=parts.port or (5671 if tls else 5672),
        virtual_host=settings.vhost,
        credentials=pika.PlainCredentials(
            unquote(parts.username or "guest"), unquote(parts.password or "guest")
        ),
        heartbeat=int(options.get("heartbeat", HEARTBEAT)),
        socket_timeout=None,
        stack_timeout=CONNECT_TIMEOUT,  # for TCP, TLS and the AMQP handshake together
        ssl_options=pika.SSLOptions(_tls(options)) if tls else None,
        client_properties={"connection_name": name},
    )


def _tls(options: dict[str, str]) -> ssl.SSLContext:
    """From the options that aiormq knows: cafile, capath, cadata, certfile, keyfile."""
    context = ssl.create_default_context(
        cafile=options.get("cafile"),
        capath=options.get("capath"),
        cadata=b64decode(options["cadata"]).decode() if "cadata" in options else None,
    )
    if options.get("no_verify_ssl", "0") != "0":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if "certfile" in options:
        context.load_cert_chain(options["certfile"], options.get("keyfile"))
    return context


def _reason(error: BaseException) -> str:
    """What pika's error is about, without its wrappers."""
    while True:
        if isinstance(error, AMQPConnectionWorkflowFailed):
            error = error.exceptions[-1]
        elif isinstance(error, AMQPConnectorPhaseErrorBase):
            error = error.exception
        elif error.args and isinstance(error.args[0], BaseException):
            error = error.args[0]
        elif isinstance(error, AMQPConnectorStackTimeout | ConnectionOpenAborted):
            return _NO_ANSWER
        else:
            return getattr(error, "reply_text", "") or str(error) or type(error).__name__
