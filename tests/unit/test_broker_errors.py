"""Every way in which a publish can fail ends in an error of ours."""

import asyncio
import errno
import inspect
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from socket import socket
from typing import Any

import aiormq.exceptions
import pika.exceptions
import pytest
import uvloop
from pydantic import SecretStr

from switchyard.broker.errors import (
    Blocked,
    BrokerError,
    BrokerUnavailable,
    LaneFull,
    MalformedMessage,
    MessageTooLarge,
    NeverTaken,
    NotPermitted,
    PublishError,
    Refused,
    Unroutable,
)
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.blocking import BlockingPublisher
from switchyard.broker.publish.outcome import (
    ConnectionFailureMemo,
    Outgoing,
    lane_full_error,
    overflow_letter,
)
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.wire.channel import open_channel
from switchyard.broker.wire.confirms import UnconfirmedPublishes
from switchyard.broker.wire.connection import CONNECT_TIMEOUT, connect, connected, underlying
from switchyard.broker.wire.failures import CHANNEL_ERRORS, ChannelLoss
from tests.support.peers import PEERS, SILENT, Peer, listening, says_nothing

KEY = ("job-1", "jobs.topic", "hot.crawl")
"""Message id, exchange and routing key of one publish."""


# --- peers that do not answer as a broker does --------------------------------------------------

peers = pytest.mark.parametrize("peer", PEERS, ids=[peer.__name__ for peer in PEERS])
LOOPS: dict[str, Callable[[Coroutine[Any, Any, None]], None]] = {
    "asyncio": asyncio.run,
    "uvloop": uvloop.run,
}
loops = pytest.mark.parametrize("run", LOOPS.values(), ids=LOOPS.keys())
TRIES = 10
"""Connections to each peer: whether the first read or the stream's end comes first is a race."""
ADDRESSES = {
    "nobody listens": "amqp://user:secret@127.0.0.1:1/",
    "no such host": "amqp://user:secret@no-such-host.invalid/",
    "TLS, and nobody listens": "amqps://user:secret@127.0.0.1:1/",
}
addresses = pytest.mark.parametrize("url", ADDRESSES.values(), ids=ADDRESSES.keys())


def settings_of(url: str) -> BrokerSettings:
    return BrokerSettings(amqp_url=SecretStr(url))


def job() -> JobMessage:
    return JobMessage(job_type="crawl", payload={})


def assert_unavailable(error: BrokerUnavailable) -> None:
    """Assert that nothing was sent, and that the text is one line without the password."""
    assert not error.maybe_accepted
    assert "secret" not in str(error)
    assert "\n" not in str(error)
    assert len(str(error)) > len("can't connect to the broker at : ")


@loops
@peers
def test_whatever_the_peer_does_the_publisher_says_that_the_broker_is_away(
    peer: Peer, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    async def publish(url: str) -> BrokerUnavailable:
        async with Publisher(settings_of(url)) as publisher:
            with pytest.raises(BrokerUnavailable) as away:
                async with asyncio.timeout(2 * CONNECT_TIMEOUT + 0.5):
                    await publisher.publish(job(), "hot.crawl")
        return away.value

    async def publish_often() -> None:
        for _ in range(1 if peer in SILENT else TRIES):
            assert_unavailable(await publish(url))

    with listening(peer) as url:
        run(publish_often())


@loops
@peers
def test_whatever_the_peer_does_a_channel_fails_with_an_error_that_is_known(
    peer: Peer, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    """Consumers, the event feed and commands use such a channel, and retry. Their timeouts for a
    silent broker are tested in test_silent_broker.py."""

    async def open_and_call(url: str) -> None:
        async with connected(url, "test") as connection:
            channel = await open_channel(underlying(connection), confirms=False, limit=1)
            await channel.queue_declare("any", passive=True)

    async def open_often() -> None:
        for _ in range(1 if peer in SILENT else TRIES):
            with pytest.raises((BrokerUnavailable, *CHANNEL_ERRORS)):
                await asyncio.wait_for(open_and_call(url), CONNECT_TIMEOUT + 1)

    with listening(peer) as url:
        run(open_often())


async def test_a_cancelled_connect_raises_no_broker_error() -> None:
    with listening(says_nothing) as url:
        connecting = asyncio.create_task(connect(url, "test"))
        await asyncio.sleep(0.1)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting


@peers
def test_whatever_the_peer_does_the_blocking_publisher_says_so_too(peer: Peer) -> None:
    with (
        listening(peer) as url,
        BlockingPublisher(settings_of(url)) as publisher,
        pytest.raises(BrokerUnavailable) as away,
    ):
        publisher.publish(job(), "hot.crawl")
    assert_unavailable(away.value)


def test_a_peer_that_resets_while_pika_looks_at_it_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_not_connected(_: socket) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    monkeypatch.setattr(socket, "getpeername", raise_not_connected)
    with (
        listening(says_nothing) as url,
        BlockingPublisher(settings_of(url)) as publisher,
        pytest.raises(BrokerUnavailable, match="endpoint is not connected") as away,
    ):
        publisher.publish(job(), "hot.crawl")
    assert_unavailable(away.value)


@addresses
async def test_an_address_without_a_broker_is_named(url: str) -> None:
    with pytest.raises(
        BrokerUnavailable, match=r"can't connect to the broker at (127|no-such)"
    ) as away:
        await connect(url, "test")
    assert_unavailable(away.value)
    with (
        BlockingPublisher(settings_of(url)) as publisher,
        pytest.raises(
            BrokerUnavailable, match=r"can't connect to the broker at (127|no-such)"
        ) as away,
    ):
        publisher.publish(job(), "hot.crawl")
    assert_unavailable(away.value)


def test_a_publisher_without_an_address_says_what_to_set() -> None:
    with pytest.raises(ValueError, match="JOBS_AMQP_URL"):
        BlockingPublisher(BrokerSettings(amqp_url=None))
    with pytest.raises(ValueError, match="JOBS_AMQP_URL"):
        Publisher(BrokerSettings(amqp_url=None))


async def test_a_batch_tries_to_connect_once() -> None:
    attempts = 0

    def count_attempt(peer: socket) -> None:
        nonlocal attempts
        attempts += 1

    batch = [Outgoing(job(), "hot.crawl") for _ in range(1_000)]
    with listening(count_attempt) as url:
        async with Publisher(settings_of(url)) as publisher:
            results = await publisher.publish_many(batch)
        assert {type(result) for result in results} == {BrokerUnavailable}
        assert attempts == 1
        with BlockingPublisher(settings_of(url)) as blocking:
            results = blocking.publish_many(batch)
        assert {type(result) for result in results} == {BrokerUnavailable}
        assert attempts == 2


async def test_a_connection_failure_is_remembered_for_one_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = 0.0
    monkeypatch.setattr("switchyard.broker.publish.publisher.time.monotonic", lambda: clock)
    memo = ConnectionFailureMemo()
    away = BrokerUnavailable("away", maybe_accepted=False)

    memo.note(away)
    assert memo.error is away
    memo.note(memo.error)
    clock = 0.99
    assert memo.error is away
    clock = 1.0
    assert memo.error is None
    memo.note(Unroutable("x", "y"))
    assert memo.error is None


# --- what aiormq and pika raise -----------------------------------------------------------------


def exceptions_of(module: object, base: type[Exception]) -> list[type[Exception]]:
    return [
        each for _, each in inspect.getmembers(module, inspect.isclass) if issubclass(each, base)
    ]


AIORMQ_FAILURES = [
    each
    for each in exceptions_of(aiormq.exceptions, aiormq.exceptions.AMQPError)
    if not issubclass(each, aiormq.exceptions.DeliveryError)  # about one message
]


@pytest.mark.parametrize("error", AIORMQ_FAILURES, ids=lambda error: error.__name__)
async def test_every_error_of_aiormq_while_connecting_becomes_ours(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise error("first", "second")

    monkeypatch.setattr("aio_pika.Connection.connect", fail)
    async with Publisher(settings_of("amqp://localhost/")) as publisher:
        with pytest.raises(BrokerUnavailable, match=r"first|it refuses user or password"):
            await publisher.publish(job(), "hot.crawl")


CHANNEL_FAILURES: list[BaseException] = [
    aiormq.exceptions.ChannelInvalidStateError("closed"),
    aiormq.exceptions.ChannelNotFoundEntity("gone"),
    aiormq.exceptions.ConnectionClosed(320, "CONNECTION_FORCED"),
    aiormq.exceptions.AMQPConnectionError("lost"),
    ConnectionResetError(104, "reset"),
    ssl.SSLError(1, "broken"),
    TimeoutError(),
]


@pytest.mark.parametrize("failure", CHANNEL_FAILURES, ids=lambda error: type(error).__name__)
async def test_every_error_of_aiormq_while_opening_a_channel_becomes_ours(
    failure: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(failure, CHANNEL_ERRORS)

    class Connection:
        async def ready(self) -> None: ...

    async def connection_now(_: object) -> Connection:
        return Connection()

    async def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(
        "switchyard.broker.wire.reconnector.Reconnector.connection_now", connection_now
    )
    monkeypatch.setattr("switchyard.broker.publish.publisher.open_channel", fail)
    async with Publisher(settings_of("amqp://localhost/")) as publisher:
        with pytest.raises(BrokerUnavailable, match="channel") as away:
            await publisher.publish(job(), "hot.crawl")
    assert not away.value.maybe_accepted


PIKA_FAILURES = exceptions_of(pika.exceptions, pika.exceptions.AMQPConnectionError)


@pytest.mark.parametrize("error", PIKA_FAILURES, ids=lambda error: error.__name__)
def test_every_error_of_pika_while_connecting_becomes_ours(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    cause = ConnectionRefusedError(111, "Connection refused")
    failure = error(320, "why") if issubclass(error, pika.exceptions.ConnectionClosed) else None

    class Connection:
        is_open = is_closing = False

        def __init__(self, *_: object, on_open_error_callback: Callable[..., None], **__: object):
            on_open_error_callback(self, failure or error(cause))

        def add_on_connection_blocked_callback(self, callback: object) -> None: ...

        def add_on_connection_unblocked_callback(self, callback: object) -> None: ...

    monkeypatch.setattr("pika.SelectConnection", Connection)
    with (
        BlockingPublisher(settings_of("amqp://localhost/")) as publisher,
        pytest.raises(
            BrokerUnavailable, match=r"localhost:5672: (why|.*Connection refused)$"
        ) as away,
    ):
        publisher.publish(job(), "hot.crawl")
    assert not away.value.maybe_accepted


# --- what the broker's answers mean -------------------------------------------------------------


@pytest.fixture
def three_publishes() -> UnconfirmedPublishes[int]:
    """Three publishes under way, with the tags 1, 2, 3."""
    waiting: UnconfirmedPublishes[int] = UnconfirmedPublishes()
    for number in (1, 2, 3):
        waiting.add(number, f"job-{number}", "jobs.topic", "hot.crawl")
    return waiting


def outcome_types(
    ended: list[tuple[int, PublishError | None]],
) -> list[tuple[int, type[PublishError] | None]]:
    return [(waiter, type(error) if error else None) for waiter, error in ended]


def test_an_ack_ends_its_own_publish(three_publishes: UnconfirmedPublishes[int]) -> None:
    assert outcome_types(three_publishes.pop_confirmed(2, multiple=False, accepted=True)) == [
        (2, None)
    ]
    assert len(three_publishes) == 2


def test_an_ack_of_many_ends_all_up_to_its_tag(three_publishes: UnconfirmedPublishes[int]) -> None:
    assert outcome_types(three_publishes.pop_confirmed(2, multiple=True, accepted=True)) == [
        (1, None),
        (2, None),
    ]
    assert outcome_types(three_publishes.pop_confirmed(3, multiple=True, accepted=True)) == [
        (3, None)
    ]


def test_a_nack_is_a_refusal(three_publishes: UnconfirmedPublishes[int]) -> None:
    assert outcome_types(three_publishes.pop_confirmed(1, multiple=False, accepted=False)) == [
        (1, Refused)
    ]
    ended = three_publishes.pop_confirmed(3, multiple=True, accepted=False)
    assert outcome_types(ended) == [(2, Refused), (3, Refused)]


def test_a_confirm_that_nobody_waits_for_is_ignored(
    three_publishes: UnconfirmedPublishes[int],
) -> None:
    assert three_publishes.pop_confirmed(9, multiple=False, accepted=True) == []
    three_publishes.pop_confirmed(3, multiple=True, accepted=True)
    assert three_publishes.pop_confirmed(3, multiple=True, accepted=True) == []


def test_a_returned_publish_is_unroutable_although_it_is_confirmed(
    three_publishes: UnconfirmedPublishes[int],
) -> None:
    three_publishes.note_return("job-2", "jobs.topic", "hot.crawl")
    ended = three_publishes.pop_confirmed(3, multiple=True, accepted=True)
    assert outcome_types(ended) == [(1, None), (2, Unroutable), (3, None)]


def test_one_job_sent_twice_and_returned_twice_is_unroutable_twice() -> None:
    waiting: UnconfirmedPublishes[int] = UnconfirmedPublishes()
    for number in (1, 2, 3):
        waiting.add(number, *KEY)
    waiting.note_return(*KEY)
    waiting.note_return(*KEY)
    ended = waiting.pop_confirmed(2, multiple=True, accepted=True)
    assert outcome_types(ended) == [(1, Unroutable), (2, Unroutable)]
    assert outcome_types(waiting.pop_confirmed(3, multiple=False, accepted=True)) == [(3, None)]


def test_after_a_lost_connection_publishes_may_have_been_accepted(
    three_publishes: UnconfirmedPublishes[int],
) -> None:
    ended = three_publishes.pop_all("CONNECTION_FORCED - node is going down")
    assert outcome_types(ended) == [
        (1, BrokerUnavailable),
        (2, BrokerUnavailable),
        (3, BrokerUnavailable),
    ]
    assert all(isinstance(error, BrokerUnavailable) and error.maybe_accepted for _, error in ended)
    assert str(ended[0][1]).endswith("CONNECTION_FORCED - node is going down")
    assert three_publishes.pop_all("again") == []


def test_an_exchange_that_is_missing_is_unroutable_and_says_what_to_do() -> None:
    waiting: UnconfirmedPublishes[int] = UnconfirmedPublishes()
    waiting.add(1, *KEY)
    waiting.add(2, "job-2", "jobs.retry.5s", "hot.llm")
    ended = waiting.pop_all("NOT_FOUND - no exchange 'jobs.topic' in vhost '/'")
    assert outcome_types(ended) == [(1, Unroutable), (2, BrokerUnavailable)]
    assert "jobctl topology apply" in str(ended[0][1])


TOO_LARGE = "PRECONDITION_FAILED - message size 70001 is larger than configured max size 65536"
TOPIC_REFUSED = (
    "ACCESS_REFUSED - access to topic 'hot.crawl' in exchange 'jobs.topic' in vhost '/' refused "
    "for user 'a'"
)
INTERNAL_EXCHANGE = "ACCESS_REFUSED - cannot publish to internal exchange 'jobs.topic' in vhost '/'"


@pytest.mark.parametrize(
    ("reason", "size", "alone", "error", "closed_by_some_message"),
    [
        (TOO_LARGE, 70_001, False, MessageTooLarge, None),
        (TOO_LARGE, 65_537, False, MessageTooLarge, None),
        (TOO_LARGE, 65_536, False, BrokerUnavailable, True),
        (TOO_LARGE, 10, True, BrokerUnavailable, True),
        (TOPIC_REFUSED, 10, False, NotPermitted, None),
        (TOPIC_REFUSED.replace("crawl", "other"), 10, False, BrokerUnavailable, True),
        (INTERNAL_EXCHANGE, 10, False, NotPermitted, None),
        ("PRECONDITION_FAILED - invalid expiration 'x'", 10, True, NeverTaken, None),
        ("PRECONDITION_FAILED - invalid expiration 'x'", 10, False, BrokerUnavailable, True),
        ("SYNTAX_ERROR - no such thing", 10, True, NeverTaken, None),
        (
            "CONNECTION_FORCED - broker forced connection closure",
            10,
            True,
            BrokerUnavailable,
            False,
        ),
        ("RESOURCE_ERROR - no memory", 10, True, BrokerUnavailable, False),
        ("INTERNAL_ERROR", 10, True, BrokerUnavailable, False),
        ("PRECONDITION_FAILED - unknown delivery tag 7", 10, True, BrokerUnavailable, False),
        ("Server connection reset: ConnectionResetError()", 10, True, BrokerUnavailable, False),
    ],
)
def test_a_channel_loss_is_classified_for_each_message(
    reason: str, size: int, alone: bool, error: type, closed_by_some_message: bool | None
) -> None:
    raised = ChannelLoss(reason).as_error("jobs.topic", "hot.crawl", size, alone=alone)
    assert type(raised) is error
    assert getattr(raised, "closed_by_some_message", None) is closed_by_some_message


@pytest.mark.parametrize(
    ("routing_key", "dead_lettered", "parked_on_quorum"),
    [
        ("hot.crawl", True, True),
        ("vlm_ocr.crawl", False, False),
        ("maintenance.crawl", False, False),
        ("backfill.crawl", False, False),
        ("no_such_lane.crawl", False, False),
    ],
)
def test_only_the_hot_lane_dead_letters_refused_jobs(
    routing_key: str, dead_lettered: bool, parked_on_quorum: bool
) -> None:
    refused = Outgoing(job(), routing_key)
    assert lane_full_error(routing_key).dead_lettered is dead_lettered
    assert (overflow_letter(refused, "quorum") is not None) is parked_on_quorum
    assert overflow_letter(refused, "classic") is None  # there the broker does it


# --- the errors themselves ----------------------------------------------------------------------


def test_publish_errors_have_one_base_class() -> None:
    for error in (Refused, LaneFull, Unroutable, Blocked, BrokerUnavailable):
        assert issubclass(error, PublishError)
    assert issubclass(PublishError, BrokerError)
    assert issubclass(MalformedMessage, BrokerError)
    assert not issubclass(MalformedMessage, PublishError)


def test_a_full_lane_says_what_happened_to_the_job() -> None:
    assert "it waits in jobs.dead" in str(LaneFull("hot.crawl", dead_lettered=True))
    assert "publish it later" in str(LaneFull("backfill.crawl", dead_lettered=False))


async def results_of(publisher: Publisher) -> AsyncIterator[type]:
    async for result in publisher.publish_stream(_jobs()):
        yield type(result)


async def _jobs() -> AsyncIterator[Outgoing]:
    for _ in range(3):
        yield Outgoing(job(), "hot.crawl")


async def test_a_stream_yields_its_errors() -> None:
    async with Publisher(settings_of("amqp://127.0.0.1:1/")) as publisher:
        assert [each async for each in results_of(publisher)] == [BrokerUnavailable] * 3
