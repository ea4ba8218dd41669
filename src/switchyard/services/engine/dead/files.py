"""Dead letters as JSON Lines: out of one system, into another. docs/redrive.md has the fields."""

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
from switchyard.broker.times import moment_of
from switchyard.broker.wire.envelope import Envelope
from switchyard.services.common.errors import InvalidInput
from switchyard.services.common.printable import printable_json
from switchyard.services.engine.dead.stored import StoredLetter, certificate_of
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
"""Bytes that a field may have where its limit is not MAX_NAME_LENGTH. None: no limit here, the
certificate cuts it."""
BATCH_SIZE = 200
"""Letters published together."""


class InvalidLine(InvalidInput):
    """A line that is no dead letter; the text says why."""


@dataclass(slots=True)
class Imported:
    """Result of an import."""

    imported: int = 0
    skipped: int = 0
    """Letters that already wait here."""
    refused: list[str] = field(default_factory=list)
    """Id of each letter that the broker refused, with the reason."""


def line_of(letter: DeadLetter) -> str:
    """Return a letter as one line, without a line break."""
    certificate = certificate_of(letter)
    line: dict[str, Any] = {
        "format": FORMAT,
        "id": letter.id,
        "reason": str(certificate.reason),
        "routing_key": certificate.routing_key,
        "queue": certificate.queue,
        "error_type": certificate.error_type,
        "message": certificate.message,
        "traceback": certificate.traceback,
        "attempts": certificate.attempts,
        "worker": certificate.worker,
        "dead_at": certificate.dead_at,
        "state": letter.state,
    }
    if certificate.properties:
        line["properties"] = certificate.properties
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
    body = _body(line)
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
    if moment_of(values["dead_at"]) is None:
        raise InvalidLine("dead_at must be a time with its zone, as in 2026-01-05T09:00:00Z")
    try:
        certificate = DeadLetterInfo(Reason(str(line.get("reason"))), **values)
    except ValueError as error:
        raise InvalidLine(f"reason: {error}") from error
    message = job_in(certificate, body)
    return StoredLetter(letter_id(message.job_id if message else None, body), body, certificate)


def _check_fits(name: str, value: int | str) -> None:
    """Check that what is published as a routing key or header is text, and fits into a frame."""
    if isinstance(value, int):
        if not 0 <= value <= MAX_ATTEMPTS:
            raise InvalidLine(f"{name} must be 0 to {MAX_ATTEMPTS:,}")
        return
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidLine(f"{name} can't be written as UTF-8") from error
    most = MAX_LENGTHS.get(name, MAX_NAME_LENGTH)
    if most is not None and size > most:
        raise InvalidLine(f"{name} has {size:,} bytes, more than {most:,}")


def _body(line: dict[str, Any]) -> bytes:
    text, coded = line.get("body"), line.get("body_base64")
    try:
        if isinstance(text, str) and coded is None:
            body = text.encode()
        elif isinstance(coded, str) and text is None:
            body = base64.b64decode(coded, validate=True)
        else:
            raise InvalidLine("give either body or body_base64")
    except (UnicodeEncodeError, binascii.Error) as error:
        raise InvalidLine(f"the body can't be read: {error}") from error
    if len(body) > MAX_BODY_BYTES:
        raise InvalidLine(f"the body has more than {MAX_BODY_BYTES} bytes")
    return body


async def exported(
    ledger: Ledger, letter_filter: DeadLetterFilter, *, limit: int | None = None
) -> AsyncIterator[str]:
    """Lines of the letters that fit, oldest first. Raises LedgerUnavailable."""
    after: tuple[float, str] | None = None
    states = (letter_filter.state,) if letter_filter.state is not None else ALL_STATES
    left = limit
    while left is None or left > 0:
        page = await ledger.dead_letters.letters_in(
            replace(letter_filter, state=None),
            states=states,
            after=after,
            limit=PAGE if left is None else min(PAGE, left),
        )
        if not page:
            return
        for letter in page:
            yield line_of(letter)
        after = (page[-1].dead_at, page[-1].id)
        left = None if left is None else left - len(page)


ALL_STATES = ("waiting", "redriven", "purged", "dropped")


async def import_letters(
    ledger: Ledger, publisher: Publisher, letters: Iterable[StoredLetter]
) -> Imported:
    """Put letters into `jobs.dead`, confirmed, but for those that wait there already and those that
    the broker never takes. The index learns of them as of any other. Raises PublishError,
    LedgerUnavailable."""
    done = Imported()
    for group in _groups(letters):
        group_filter = DeadLetterFilter(ids=frozenset(each.id for each in group))
        known = {
            letter.id: letter.redrives
            for letter in await ledger.dead_letters.letters_in(
                group_filter, states=("waiting",), limit=len(group)
            )
        }
        new = [each for each in group if known.get(each.id, -1) < each.redrives]
        answers = await asyncio.gather(*(_put(publisher, each) for each in new))
        refused = [each for each in answers if each is not None]
        done.refused += refused
        done.imported += len(new) - len(refused)
        done.skipped += len(group) - len(new)
    return done


async def _put(publisher: Publisher, letter: StoredLetter) -> str | None:
    """Publish the letter; return why the broker never takes it, None where it has taken it. Raises
    PublishError."""
    try:
        key = letter.certificate.routing_key
        await publisher.send(DEAD_EXCHANGE, key, _envelope(letter))
    except NeverTaken as error:
        return f"{letter.id}: {error}"
    return None


def _groups(letters: Iterable[StoredLetter]) -> Iterator[list[StoredLetter]]:
    group: list[StoredLetter] = []
    for letter in letters:
        group.append(letter)
        if len(group) >= BATCH_SIZE:
            yield group
            group = []
    if group:
        yield group


def _envelope(letter: StoredLetter) -> Envelope:
    headers = letter.certificate.headers()
    if letter.message is not None:
        return replace(envelope_of(letter.message, headers), body=letter.body)
    return Envelope(
        body=letter.body, message_id=letter.id, timestamp=int(time.time()), headers=headers
    )
