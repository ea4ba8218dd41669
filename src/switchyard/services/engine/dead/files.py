"""Export and import dead letters as JSON Lines. docs/redrive.md has the fields."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from switchyard.broker.dead.dead_letter_headers import (
    MAX_ATTEMPTS,
    MAX_NAME_LENGTH,
    PROPERTIES_LIMIT,
    DeadLetterInfo,
    Reason,
    job_in,
    letter_id,
)
from switchyard.broker.errors import NeverTaken
from switchyard.broker.lanes import DEAD_EXCHANGE
from switchyard.broker.message import MAX_BODY_BYTES
from switchyard.broker.publish.outcome import envelope_of
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.times import parse_moment
from switchyard.broker.wire.envelope import Envelope
from switchyard.services.common.errors import InvalidInput
from switchyard.services.common.printable import printable_json
from switchyard.services.engine.dead.stored import StoredLetter, info_of
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.requests import DeadLetterFilter
from switchyard.services.engine.records.results import DeadLetter

FORMAT = 1
PAGE = 500
MAX_LENGTHS = {
    "message": None,
    "traceback": None,
    "error_type": 8_000,
    "properties": (PROPERTIES_LIMIT + 2) // 3 * 4,
}
"""Bytes that a field may have where its limit is not MAX_NAME_LENGTH. None: any number, as
DeadLetterInfo shortens it."""
BATCH_SIZE = 200
"""Letters published together."""
ALL_STATES = ("waiting", "redriven", "purged", "dropped")


class InvalidLine(InvalidInput):
    """A line is not a dead letter; the text says why."""


@dataclass(slots=True)
class ImportResult:
    """Result of an import."""

    imported: int = 0
    skipped: int = 0
    """Letters that already wait here."""
    refused: list[str] = field(default_factory=list)
    """Id of each letter that the broker refused, with the reason."""


def to_line(letter: DeadLetter) -> str:
    """Return a letter as one line, without a line break."""
    info = info_of(letter)
    line: dict[str, Any] = {
        "format": FORMAT,
        "id": letter.id,
        "reason": str(info.reason),
        "routing_key": info.routing_key,
        "queue": info.queue,
        "error_type": info.error_type,
        "message": info.message,
        "traceback": info.traceback,
        "attempts": info.attempts,
        "worker": info.worker,
        "dead_at": info.dead_at,
        "state": letter.state,
    }
    if info.properties:
        line["properties"] = info.properties
    try:
        line["body"] = letter.body.decode()
    except UnicodeDecodeError:
        line["body_base64"] = base64.b64encode(letter.body).decode()
    return printable_json(json.dumps(line, ensure_ascii=False))


def parse_line(text: str | bytes) -> StoredLetter:
    """Return the letter of a line. Raises InvalidLine."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidLine(f"not JSON: {error}") from error
    if not isinstance(line, dict) or line.get("format") != FORMAT:
        raise InvalidLine(f'not a line of `jobctl dead export` ("format": {FORMAT})')
    body = _parse_body(line)
    values: dict[str, Any] = {}
    for name, default in (
        ("routing_key", None), ("queue", ""), ("error_type", ""), ("message", ""),
        ("traceback", ""), ("attempts", 0), ("worker", ""), ("properties", ""),
        ("dead_at", datetime.now(UTC).isoformat()),
    ):  # fmt: skip
        value = line.get(name, default)
        if not isinstance(value, int if name == "attempts" else str):
            raise InvalidLine(f"{name} is missing or of another type")
        _check_fits(name, value)
        values[name] = value
    if parse_moment(values["dead_at"]) is None:
        raise InvalidLine("dead_at must be a time with its zone, as in 2026-01-05T09:00:00Z")
    try:
        info = DeadLetterInfo(Reason(str(line.get("reason"))), **values)
    except ValueError as error:
        raise InvalidLine(f"reason: {error}") from error
    message = job_in(info, body)
    return StoredLetter(letter_id(message.job_id if message else None, body), body, info)


def _check_fits(name: str, value: int | str) -> None:
    """Check that a value can be published as a routing key or header: that it is text, and fits
    into a frame."""
    if isinstance(value, int):
        if not 0 <= value <= MAX_ATTEMPTS:
            raise InvalidLine(f"{name} must be 0 to {MAX_ATTEMPTS:,}")
        return
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidLine(f"{name} can't be written as UTF-8") from error
    max_length = MAX_LENGTHS.get(name, MAX_NAME_LENGTH)
    if max_length is not None and size > max_length:
        raise InvalidLine(f"{name} has {size:,} bytes, more than {max_length:,}")


def _parse_body(line: dict[str, Any]) -> bytes:
    text, base64_text = line.get("body"), line.get("body_base64")
    try:
        if isinstance(text, str) and base64_text is None:
            body = text.encode()
        elif isinstance(base64_text, str) and text is None:
            body = base64.b64decode(base64_text, validate=True)
        else:
            raise InvalidLine("give either body or body_base64")
    except (UnicodeEncodeError, binascii.Error) as error:
        raise InvalidLine(f"the body can't be read: {error}") from error
    if len(body) > MAX_BODY_BYTES:
        raise InvalidLine(f"the body has more than {MAX_BODY_BYTES} bytes")
    return body


async def export_letters(
    ledger: Ledger, letter_filter: DeadLetterFilter, *, limit: int | None = None
) -> AsyncIterator[str]:
    """Yield the lines of the letters that match, oldest first. Raises LedgerUnavailable."""
    after: tuple[float, str] | None = None
    states = (letter_filter.state,) if letter_filter.state is not None else ALL_STATES
    remaining = limit
    while remaining is None or remaining > 0:
        page = await ledger.dead_letters.letters_in(
            replace(letter_filter, state=None),
            states=states,
            after=after,
            limit=PAGE if remaining is None else min(PAGE, remaining),
        )
        if not page:
            return
        for letter in page:
            yield to_line(letter)
        after = (page[-1].dead_at, page[-1].id)
        remaining = None if remaining is None else remaining - len(page)


async def import_letters(
    ledger: Ledger, publisher: Publisher, letters: Iterable[StoredLetter]
) -> ImportResult:
    """Publish letters to `jobs.dead`, except those that wait there already. Letters that the broker
    can never take are reported in the result. Raises PublishError, LedgerUnavailable."""
    result = ImportResult()
    for batch in _batches(letters):
        of_batch = DeadLetterFilter(ids=frozenset(each.id for each in batch))
        redrives_waiting = {
            letter.id: letter.redrives
            for letter in await ledger.dead_letters.letters_in(
                of_batch, states=("waiting",), limit=len(batch)
            )
        }
        new = [each for each in batch if redrives_waiting.get(each.id, -1) < each.redrives]
        refusals = await asyncio.gather(*(_publish(publisher, each) for each in new))
        refused = [each for each in refusals if each is not None]
        result.refused += refused
        result.imported += len(new) - len(refused)
        result.skipped += len(batch) - len(new)
    return result


async def _publish(publisher: Publisher, letter: StoredLetter) -> str | None:
    """Publish a letter; return the reason if the broker can never take it, else None. Raises
    PublishError."""
    try:
        key = letter.info.routing_key
        await publisher.send(DEAD_EXCHANGE, key, _envelope(letter))
    except NeverTaken as error:
        return f"{letter.id}: {error}"
    return None


def _batches(letters: Iterable[StoredLetter]) -> Iterator[list[StoredLetter]]:
    batch: list[StoredLetter] = []
    for letter in letters:
        batch.append(letter)
        if len(batch) >= BATCH_SIZE:
            yield batch
            batch = []
    if batch:
        yield batch


def _envelope(letter: StoredLetter) -> Envelope:
    headers = letter.info.headers()
    if letter.message is not None:
        return replace(envelope_of(letter.message, headers), body=letter.body)
    return Envelope(
        body=letter.body, message_id=letter.id, timestamp=int(time.time()), headers=headers
    )
