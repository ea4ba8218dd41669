"""One connection of the blocking publisher, from its opening to its loss.

pika's loop is driven in the calling thread, and only while there is something to wait for.
"""

from __future__ import annotations

import random
import ssl
import time
from base64 import b64decode
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
from pika.exceptions import ChannelWrongStateError, ConnectionOpenAborted
from pika.spec import Basic

from switchyard.broker.addresses import AMQP_PORTS, display_address, nodes_of, vhost_of
from switchyard.broker.errors import BrokerUnavailable, PublishError
from switchyard.broker.forking import OwnerProcess, keep_from_children
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.wire.confirms import UnconfirmedPublishes
from switchyard.broker.wire.connection import CONNECT_TIMEOUT
from switchyard.broker.wire.envelope import Envelope, encode_head
from switchyard.broker.wire.failures import unavailable_error
from switchyard.broker.wire.tcp_timeout import TCP_OPTIONS

HEARTBEAT = 60
"""Seconds. Nobody answers heartbeats between two calls, so a publisher that is idle for minutes
loses its connection; the next publish notices before it sends anything, and connects again."""
CLOSE_TIMEOUT = 1.0
"""Seconds to wait for the broker's answer when a connection is closed."""
_NO_ANSWER = "no answer in time"
_PARENTS_CONNECTION = "it is the connection of the process that this one was forked from"
IDLE_AFTER = 0.005
"""Seconds without I/O after which a publish first reads what has come in, and is then sent at once.
Publishes that follow each other faster are sent in groups."""


@dataclass(slots=True, eq=False)
class PendingPublish:
    """A publish under way."""

    session: Session
    at: float
    """Seconds, on the monotonic clock."""
    done: bool = False
    error: PublishError | None = None


class Session:
    """One connection with one channel, from its opening to its loss.

    Everything happens inside `drive`: frames leave, frames arrive, callbacks are called.
    """

    def __init__(self, node: str, name: str, limit: float) -> None:
        """Start to connect to the node at that address, for at most `limit` seconds. Nothing
        happens before `drive` is called."""
        self._owner = OwnerProcess()
        self._unconfirmed: UnconfirmedPublishes[PendingPublish] = UnconfirmedPublishes()
        self._channel: Channel | None = None
        self._confirms_enabled = False
        self._loss = ""
        self._driven_at = 0.0
        self.is_blocked = False
        """The broker has said `connection.blocked` (a memory or disk alarm)."""
        parameters = _connection_parameters(node, name, limit)
        self._loop = IOLoop()
        self._loop.activate_poller()
        self._connection = pika.SelectConnection(
            parameters,
            on_open_callback=self._on_open,
            on_open_error_callback=self._on_lost,
            on_close_callback=self._on_lost,
            custom_ioloop=self._loop,
        )
        keep_from_children(self)
        self._connection.add_on_connection_blocked_callback(self._on_blocked)
        self._connection.add_on_connection_unblocked_callback(self._on_unblocked)

    @classmethod
    def connect(cls, settings: BrokerSettings, name: str) -> Self:
        """Connect to one of the broker's nodes, tried in random order. Raises BrokerUnavailable
        after CONNECT_TIMEOUT seconds at the latest, of which each node gets its part;
        LimitReached."""
        nodes = list(nodes_of(settings.require_amqp_url()))
        random.shuffle(nodes)
        deadline = time.monotonic() + CONNECT_TIMEOUT
        reasons = []
        while nodes:
            node = nodes.pop()
            limit = (deadline - time.monotonic()) / (len(nodes) + 1)
            session = cls(node, name, limit)
            # A little more than pika's own time-out, which ends an attempt in better order.
            session.drive(session._is_decided, limit + 0.2)
            if session._confirms_enabled:
                return session
            reasons.append(f"{display_address(node)}: {session._loss or _NO_ANSWER}")
            session.close()
        raise unavailable_error(f"can't connect to the broker at {'; '.join(reasons)}")

    def fileno(self) -> int:
        """Return the socket's file descriptor; -1 without one."""
        transport = getattr(self._connection, "_transport", None)
        sock = None if transport is None else transport._sock
        return -1 if sock is None else int(sock.fileno())

    @property
    def opened_here(self) -> bool:
        """Whether this process has opened it, and not the one that it was forked from."""
        return self._owner.is_current

    def _is_decided(self) -> bool:
        return self._confirms_enabled or bool(self._loss)

    @property
    def is_open(self) -> bool:
        is_open = self._channel is not None and self._channel.is_open and not self._loss
        return is_open and self.opened_here

    @property
    def unconfirmed(self) -> int:
        """Publishes that wait for their confirm."""
        return len(self._unconfirmed)

    def publish(self, exchange: str, routing_key: str, envelope: Envelope) -> PendingPublish:
        """Send one persistent, mandatory message.

        Raises BrokerUnavailable when the channel is closed, NeverTaken when the message does not
        fit into AMQP.
        """
        # pika sends headers of any size, for which a broker closes the connection.
        encode_head(exchange, routing_key, envelope, self._connection.params.frame_max)
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
            raise BrokerUnavailable("the channel is closed", maybe_accepted=False)
        try:
            self._channel.basic_publish(
                exchange, routing_key, envelope.body, properties, mandatory=True
            )
        except ChannelWrongStateError as error:
            raise BrokerUnavailable("the channel is closed", maybe_accepted=False) from error
        sent = PendingPublish(self, time.monotonic())
        size = len(envelope.body)
        self._unconfirmed.add(sent, envelope.message_id, exchange, routing_key, size)
        return sent

    def drive(self, until: Callable[[], bool], seconds: float) -> None:
        """Send and receive until the condition `until` holds, for at most `seconds`."""
        if not self.opened_here:
            self._lose(_PARENTS_CONNECTION)
            return
        deadline = time.monotonic() + seconds
        timer = self._loop.call_later(seconds, _do_nothing)  # or a poll would last until data comes
        while not until() and time.monotonic() < deadline:
            self._poll_once()
        self._loop.remove_timeout(timer)

    @property
    def is_idle(self) -> bool:
        """Whether nothing was sent or received for IDLE_AFTER seconds."""
        return time.monotonic() - self._driven_at >= IDLE_AFTER

    def catch_up(self) -> None:
        """Send what is still buffered, and process what has come in (a loss, an alarm)."""
        if not self.opened_here:
            self._lose(_PARENTS_CONNECTION)
            return
        self._loop.call_later(0, _do_nothing)
        self._poll_once()

    def close(self) -> None:
        """Close the connection; what waits for a confirm fails with BrokerUnavailable."""
        if not self.opened_here:
            self._lose(_PARENTS_CONNECTION)
            return
        if self._connection.is_open:
            self._connection.close()
        if self._connection.is_closing:
            self.drive(lambda: self._connection.is_closed, CLOSE_TIMEOUT)
        self._lose("it was closed")
        self._loop.close()

    def _poll_once(self) -> None:
        try:
            self._loop.poll()
        except ValueError as error:
            # A peer that resets at once: pika does not expect it between connecting and TLS or
            # AMQP, and calls no callback.
            if self._is_decided():
                raise
            self._lose(_reason_of(error.__context__ or error))
        self._loop.process_timeouts()
        self._driven_at = time.monotonic()

    # --- callbacks --------------------------------------------------------------------------

    def _on_open(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._on_channel_open)

    def _on_channel_open(self, channel: Channel) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._on_lost)
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirm, self._on_confirming)

    def _on_confirming(self, _: object) -> None:
        self._confirms_enabled = True

    def _on_return(
        self, _: Channel, method: Basic.Return, properties: pika.BasicProperties, body: bytes
    ) -> None:
        self._unconfirmed.note_return(
            properties.message_id or "", method.exchange or "", method.routing_key or ""
        )

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        self._settle(
            self._unconfirmed.pop_confirmed(
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
        self._lose(_reason_of(error))

    def _lose(self, reason: str) -> None:
        self._loss = self._loss or reason
        self._settle(self._unconfirmed.pop_all(self._loss))

    def _settle(self, ended: Iterable[tuple[PendingPublish, PublishError | None]]) -> None:
        for sent, error in ended:
            sent.error = error
            sent.done = True


def _do_nothing() -> None:
    """Do nothing: the callback of timers that only end a poll."""


def _connection_parameters(node: str, name: str, limit: float) -> pika.ConnectionParameters:
    """Return pika's parameters for the node. An address has the same meaning as for the asyncio
    publisher."""
    parts = urlsplit(node)
    options = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    tls = parts.scheme == "amqps"
    return pika.ConnectionParameters(
        host=parts.hostname or "localhost",
        port=parts.port or AMQP_PORTS[parts.scheme],
        virtual_host=vhost_of(node),
        credentials=pika.PlainCredentials(
            unquote(parts.username or "guest"), unquote(parts.password or "guest")
        ),
        heartbeat=int(options.get("heartbeat", HEARTBEAT)),
        socket_timeout=None,
        tcp_options=dict(TCP_OPTIONS),
        stack_timeout=limit,  # for TCP, TLS and the AMQP handshake together
        ssl_options=pika.SSLOptions(_tls_context(options)) if tls else None,
        client_properties={"connection_name": name},
    )


def _tls_context(options: dict[str, str]) -> ssl.SSLContext:
    """Return the TLS context of the options that aiormq knows: cafile, capath, cadata, certfile,
    keyfile."""
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


def _reason_of(error: BaseException) -> str:
    """Return the reason in one of pika's errors, without its wrappers."""
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
