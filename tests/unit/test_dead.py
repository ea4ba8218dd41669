"""Headers of dead letters: written, and read also where another program wrote them."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.broker.dead.dead_letter_headers import (
    MAX_NAME_LENGTH,
    MESSAGE_LIMIT,
    TRACEBACK_LIMIT,
    DeadLetterInfo,
    Reason,
    letter_id,
    read_dead_letter_info,
)
from switchyard.broker.wire.envelope import Envelope, encode_publish

DIED_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


def broker_headers(*deaths: tuple[str, str, str]) -> dict[str, Any]:
    """Return headers as the broker writes them for (queue, reason, routing key), the latest
    first."""
    return {
        "x-death": [
            {
                "queue": queue,
                "reason": reason,
                "routing-keys": [key],
                "exchange": "jobs.topic",
                "count": 1,
                "time": DIED_AT,
            }
            for queue, reason, key in deaths
        ]
    }


@given(
    st.builds(
        DeadLetterInfo,
        reason=st.sampled_from([each for each in Reason if each is not Reason.DISPLACED]),
        routing_key=texts,
        queue=texts,
        error_type=texts,
        message=texts,
        traceback=texts,
        attempts=st.integers(0, 1000),
        worker=texts,
    )
)
def test_the_info_survives_as_headers(info: DeadLetterInfo) -> None:
    headers = info.headers()
    assert headers["x-dead-reason"] == info.reason.value
    assert read_dead_letter_info(headers, "jobs.elsewhere", None) == info


def test_headers_can_not_claim_that_a_job_was_displaced() -> None:
    headers = DeadLetterInfo(Reason.DISPLACED, "hot.noop").headers()
    assert read_dead_letter_info(headers, "hot.noop", None).reason is Reason.OVERFLOWED


@pytest.mark.parametrize("text", ["bad \ud800", "a\0b", "\U0001f600" * 100_000, "\x1b[2J\r\n"])
def test_the_info_of_any_error_text_can_be_written(text: str) -> None:
    info = DeadLetterInfo(
        Reason.EXHAUSTED, "hot.noop", error_type=text, message=text, traceback=text, worker=text
    )
    for each in (info, *info.shortened()):
        frames = encode_publish(
            1, "jobs.dlx", "hot.noop", Envelope(b"{}", "m", headers=each.headers()), 131_072
        )
        assert b"\xf0\x9f\x98\x80" in frames or "\U0001f600" not in text
    assert (
        len(frames) < 1_000 + 4 * MAX_NAME_LENGTH
    )  # it fits into the smallest frames that AMQP allows


def test_long_texts_are_cut_so_that_headers_fit_into_a_frame() -> None:
    info = DeadLetterInfo(
        Reason.EXHAUSTED,
        "hot.crawl",
        message="m" * 3_000 + "the end",
        traceback="the start" + "t" * 20_000 + "the error",
    )
    headers = info.headers()
    assert headers["x-dead-message"] == "m" * MESSAGE_LIMIT
    assert len(headers["x-dead-traceback"]) == TRACEBACK_LIMIT
    assert headers["x-dead-traceback"].endswith("the error")


@pytest.mark.parametrize(
    ("broker_says", "reason"),
    [
        ("expired", Reason.EXPIRED),
        ("maxlen", Reason.OVERFLOWED),
        ("delivery_limit", Reason.EXHAUSTED),
        ("rejected", Reason.EXHAUSTED),
    ],
)
def test_a_death_by_the_broker_is_read_from_its_header(broker_says: str, reason: Reason) -> None:
    headers = broker_headers(("hot.llm", broker_says, "hot.summarize_content"))
    info = read_dead_letter_info(headers, "hot.summarize_content", None)
    assert info == DeadLetterInfo(
        reason,
        "hot.summarize_content",
        queue="hot.llm",
        error_type="Broker",
        message=f"dead-lettered by the broker: {broker_says}",
        dead_at=DIED_AT.isoformat(),
    )


def test_the_latest_death_is_read() -> None:
    headers = broker_headers(
        ("hot.llm", "maxlen", "hot.llm"), ("jobs.retry.5s", "expired", "hot.llm")
    )
    assert read_dead_letter_info(headers, "hot.llm", None).reason is Reason.OVERFLOWED
    assert read_dead_letter_info(headers, "hot.llm", None).queue == "hot.llm"


def test_a_retried_job_that_died_in_its_lane_can_go_back_under_its_own_key() -> None:
    """A retry comes back with its queue's name as routing key, to which no queue is bound."""
    headers = broker_headers(
        ("hot.llm", "expired", "hot.llm"), ("jobs.retry.5s", "expired", "hot.llm")
    )
    assert (
        read_dead_letter_info(headers, "hot.llm", "summarize_content").routing_key
        == "hot.summarize_content"
    )
    assert read_dead_letter_info(headers, "hot.llm", None).routing_key == "hot.llm"


def test_the_type_in_the_body_does_not_replace_the_key_that_was_published_to() -> None:
    headers = broker_headers(("hot.llm", "expired", "hot.summarize_content"))
    assert (
        read_dead_letter_info(headers, "x", "another_type").routing_key == "hot.summarize_content"
    )
    assert (
        read_dead_letter_info({}, "hot.no_such_type", "another_type").routing_key
        == "hot.no_such_type"
    )


@pytest.mark.parametrize("headers", [{}, {"x-death": []}, {"x-death": None}, {"x-death": ["?"]}])
def test_a_letter_without_a_history_was_unroutable(headers: dict[str, Any]) -> None:
    info = read_dead_letter_info(headers, "hot.no_such_type", None)
    assert info.reason is Reason.UNROUTABLE
    assert info.routing_key == "hot.no_such_type"


def test_our_headers_from_before_the_brokers_death_entry_do_not_count() -> None:
    forged = DeadLetterInfo(Reason.PERMANENT, "hot.crawl", error_type="InvalidPayload")
    history = broker_headers(("hot.llm", "expired", "hot.llm"))
    assert read_dead_letter_info(history | forged.headers(), "x", None).reason is Reason.EXPIRED


def test_of_another_programs_headers_the_readable_ones_count() -> None:
    info = read_dead_letter_info(
        {
            "x-dead-reason": "no such reason",
            "x-dead-message": b"caf\xe9",
            "x-dead-error-type": "ValueError",
            "x-dead-attempts": "three",
            "x-dead-worker": 7,
            "x-dead-traceback": None,
        },
        "hot.crawl",
        None,
    )
    assert info == DeadLetterInfo(
        Reason.EXHAUSTED, "hot.crawl", error_type="ValueError", dead_at=info.dead_at
    )


def test_an_impossible_routing_key_does_not_count() -> None:
    assert (
        read_dead_letter_info(
            {"x-dead-reason": "expired", "x-dead-routing-key": "ä" * 128}, "k", None
        ).routing_key
        == "k"
    )
    headers = broker_headers(("hot.llm", "expired", "k" * 256))
    assert read_dead_letter_info(headers, "hot.crawl", None).routing_key == "hot.crawl"


@pytest.mark.parametrize("reason", [b"expired", 7, None])
def test_a_reason_that_is_no_text_does_not_count(reason: object) -> None:
    assert (
        read_dead_letter_info({"x-dead-reason": reason}, "hot.crawl", None).reason
        is Reason.EXHAUSTED
    )


def test_the_id_of_a_letter_is_its_jobs_or_made_of_its_bytes() -> None:
    assert letter_id("job-1", b"whatever") == "job-1"
    assert letter_id(None, b"not a job") == letter_id(None, b"not a job")
    assert letter_id(None, b"not a job") != letter_id(None, b"another")
    assert letter_id(None, b"not a job").startswith("raw-")
