"""Redrive: sending dead letters back to their lanes. Publish, confirm, then acknowledge.

Interrupted at any moment, a letter is still in `jobs.dead`, or its copy is in its lane, or both:
the ledger lets only one copy run.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from broker.dead_queue import Letter, Scan, scanning
from broker.errors import LaneFull, PublishError
from broker.lanes import LANES, Lane, lane_named, lane_of, queue_name, split_routing_key
from broker.message import JobMessage, describe, now
from broker.publisher import Accepted, Outgoing, Publisher
from broker.settings import BrokerSettings
from services.ledger import DeadLetterState, Ledger, State
from services.registry import InvalidPayload, Registry, UnknownJobType

BATCH = 200
"""Letters looked up, published and confirmed together."""


class InvalidRedrive(ValueError):
    """The redrive can't be done as it was asked for; the text says what to change."""


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which letters: those that fit every field that is set."""

    ids: frozenset[str] = frozenset()
    job_type: str | None = None
    lane: str | None = None
    reason: str | None = None
    error_type: str | None = None
    older_than: float | None = None
    """Seconds since the death, at least."""
    younger_than: float | None = None
    """Seconds since the death, at most."""

    @property
    def is_empty(self) -> bool:
        return self == LetterFilter()

    def matches(self, letter: Letter, moment: datetime) -> bool:
        certificate = letter.certificate
        job_type = letter.message.job_type if letter.message else ""
        return (
            (not self.ids or letter.id in self.ids)
            and (self.job_type is None or job_type == self.job_type)
            and (self.lane is None or lane_of(certificate.routing_key) == self.lane)
            and (self.reason is None or str(certificate.reason) == self.reason)
            and (self.error_type is None or certificate.error_type == self.error_type)
            and self._fits_age(certificate.dead_at, moment)
        )

    def _fits_age(self, dead_at: str, moment: datetime) -> bool:
        if self.older_than is None and self.younger_than is None:
            return True
        try:
            age = (moment - datetime.fromisoformat(dead_at)).total_seconds()
        except (ValueError, TypeError):
            return False
        return (self.older_than is None or age >= self.older_than) and (
            self.younger_than is None or age <= self.younger_than
        )


@dataclass(frozen=True, slots=True)
class Change:
    """What a redrive alters in each letter."""

    to: str | None = None
    """Routing key to publish to instead of the original one."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Paths into the message, such as `payload.timeout` or `priority`, and their new values."""


@dataclass(slots=True)
class Tally:
    """What a redrive or purge has done so far."""

    scanned: int = 0
    matched: int = 0
    done: int = 0
    """Redriven (or purged): published, confirmed, acknowledged."""
    dropped: int = 0
    """Copies of jobs that have succeeded or were cancelled meanwhile."""
    refused: int = 0
    """Left in their place: the lane was full, or the broker did not confirm."""
    invalid: int = 0
    """Left in their place: with the change they do not validate."""
    notes: list[str] = field(default_factory=list)
    """One line for each letter that was dropped, refused or invalid; at most 100."""

    def note(self, text: str) -> None:
        if len(self.notes) < 100:
            self.notes.append(text)


def parse_assignment(text: str) -> tuple[str, Any]:
    """`payload.x=1` as path and value; the value is JSON, or else text as it stands.

    Raises InvalidRedrive when it has no such form or names another part of the message.
    """
    path, equals, raw = text.partition("=")
    head = path.split(".")[0]
    known = ("payload", "priority", "metadata.max_attempts", "metadata.expires_at")
    if not equals or not ((head == "payload" and "." in path) or path in known[1:]):
        raise InvalidRedrive(
            f"--set {text!r}: write PATH=VALUE with PATH payload.…, {', '.join(known[1:])}"
        )
    try:
        return path, json.loads(raw)
    except ValueError:
        return path, raw


def changed(letter: Letter, change: Change, registry: Registry) -> tuple[JobMessage, str]:
    """The copy that goes back, and its routing key.

    Raises InvalidRedrive when it would not be a valid job.
    """
    if letter.message is None:
        raise InvalidRedrive("the body is no job message: export it, mend it and publish it anew")
    values = json.loads(letter.delivery.body)
    for path, value in change.values.items():
        _assign(values, path.split("."), value)
    routing_key = change.to or letter.certificate.routing_key
    try:
        lane, job_type_name = split_routing_key(routing_key)
        lane_named(lane, LANES)
        values["job_type"] = job_type_name
        job_type = registry.get(job_type_name)
        message = JobMessage.model_validate_json(json.dumps(values))
        job_type.validate(message.payload)
    except ValidationError as error:
        raise InvalidRedrive(describe(error)) from error
    except (ValueError, UnknownJobType, InvalidPayload) as error:
        raise InvalidRedrive(str(error)) from error
    if lane not in job_type.lanes:
        raise InvalidRedrive(f"{job_type_name} is not worked in lane {lane}")
    moment = now()
    expires_at = message.metadata.expires_at
    return (
        message.with_metadata(
            attempts=0,
            redrives=message.metadata.redrives + 1,
            queued_at=moment,
            not_before=None,
            # An expiry that has passed would only kill it again.
            expires_at=expires_at if expires_at is None or expires_at > moment else None,
        ),
        routing_key,
    )


def _assign(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    at = values
    for step in path[:-1]:
        inner = at.setdefault(step, {})
        if not isinstance(inner, dict):
            raise InvalidRedrive(f"{'.'.join(path)}: {step} is not an object")
        at = inner
    at[path[-1]] = value


class Redriver:
    """Goes through `jobs.dead` and sends back, or throws away, what a filter matches."""

    def __init__(
        self,
        settings: BrokerSettings,
        registry: Registry,
        ledger: Ledger,
        *,
        on_progress: Callable[[Tally, int], None] = lambda tally, total: None,
        lanes: tuple[Lane, ...] = LANES,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._ledger = ledger
        self._lanes = lanes
        self._on_progress = on_progress
        """Called with the tally so far and the number of letters to scan."""

    async def redrive(
        self,
        which: LetterFilter,
        change: Change,
        *,
        dry_run: bool = False,
        limit: int | None = None,
    ) -> Tally:
        """Redrive the letters that match, oldest first, at most `limit` of them.

        With `dry_run` nothing is published, and the tally says what would happen. Raises
        BrokerAway, LedgerUnavailable: then every letter not done is still in its place.
        """
        tally = Tally()
        async with (
            Publisher(self._settings, name="redrive") as publisher,
            aclosing(self._batches(which, tally, limit)) as batches,
        ):
            async for batch, scan in batches:
                copies = await self._prepare(batch, change, tally, drop=not dry_run)
                if dry_run:
                    tally.done += len(copies)
                    for letter, copy in copies:
                        tally.note(f"{letter.id}: would go to {copy.routing_key}")
                else:
                    await self._send(publisher, await self._fitting(copies, scan, tally), tally)
                self._on_progress(tally, scan.total)
                if tally.refused:
                    break  # a full lane stays full: the rest would be refused one by one
        return tally

    async def purge(self, which: LetterFilter, *, dry_run: bool = False) -> Tally:
        """Throw away the letters that match; their records stay, marked as purged.

        Raises BrokerAway, LedgerUnavailable: then every letter not done is still in its place.
        """
        tally = Tally()
        async with aclosing(self._batches(which, tally, None)) as batches:
            async for batch, scan in batches:
                if not dry_run:
                    await self._mark(batch, DeadLetterState.PURGED)
                    for letter in batch:
                        letter.delivery.ack()
                tally.done += len(batch)
                self._on_progress(tally, scan.total)
        return tally

    async def _mark(self, letters: Sequence[Letter], state: DeadLetterState) -> None:
        if letters:
            await self._ledger.mark_dead_state([each.id for each in letters], state, time.time())

    async def _batches(
        self, which: LetterFilter, tally: Tally, limit: int | None
    ) -> AsyncGenerator[tuple[list[Letter], Scan], None]:
        moment = now()
        async with scanning(self._settings.require_amqp_url()) as scan:
            batch: list[Letter] = []
            async for letter in scan.letters():
                tally.scanned += 1
                if which.matches(letter, moment):
                    tally.matched += 1
                    batch.append(letter)
                full = limit is not None and tally.matched >= limit
                if len(batch) >= BATCH or full:
                    yield batch, scan
                    batch = []
                if full:
                    break
            yield batch, scan

    async def _prepare(
        self, batch: list[Letter], change: Change, tally: Tally, *, drop: bool
    ) -> list[tuple[Letter, Outgoing]]:
        states = await self._ledger.states([letter.id for letter in batch])
        copies: list[tuple[Letter, Outgoing]] = []
        for letter in batch:
            state = states.get(letter.id)
            if state in (State.SUCCEEDED, State.CANCELLED):
                tally.dropped += 1
                tally.note(f"{letter.id}: dropped, the job has {state} meanwhile")
                if drop:
                    await self._mark([letter], DeadLetterState.DROPPED)
                    letter.delivery.ack()
                continue
            try:
                message, routing_key = changed(letter, change, self._registry)
            except InvalidRedrive as error:
                tally.invalid += 1
                tally.note(f"{letter.id}: not redriven: {error}")
                continue
            copies.append((letter, Outgoing(message, routing_key)))
        return copies

    async def _fitting(
        self, copies: list[tuple[Letter, Outgoing]], scan: Scan, tally: Tally
    ) -> list[tuple[Letter, Outgoing]]:
        """Those for which there is room. A full hot lane would make a new dead letter of a copy:
        the old one would lose its place, and what is known of its death."""
        room: dict[str, int] = {}
        fitting: list[tuple[Letter, Outgoing]] = []
        for letter, copy in copies:
            lane = lane_named(lane_of(copy.routing_key), self._lanes)
            queue = queue_name(lane.name, self._registry.get(copy.message.job_type).worker)
            if queue not in room:
                room[queue] = lane.max_length - await scan.depth(queue)
            if room[queue] > 0:
                room[queue] -= 1
                fitting.append((letter, copy))
            else:
                tally.refused += 1
                full = LaneFull(copy.routing_key, dead_lettered=False)
                tally.note(f"{letter.id}: {_refusal(full)}")
        return fitting

    async def _send(
        self, publisher: Publisher, copies: list[tuple[Letter, Outgoing]], tally: Tally
    ) -> None:
        results = await publisher.publish_many(copy for _, copy in copies)
        sent: list[tuple[Letter, int]] = []
        for (letter, copy), result in zip(copies, results, strict=True):
            if isinstance(result, Accepted):
                sent.append((letter, copy.message.metadata.redrives))
                continue
            tally.refused += 1
            tally.note(f"{letter.id}: {_refusal(result)}")
            if isinstance(result, LaneFull) and result.dead_lettered:
                # The copy is a dead letter itself now: one of the two is enough.
                letter.delivery.ack()
        at = time.time()
        await asyncio.gather(
            *(self._ledger.mark_redriven(letter.id, redrives, at) for letter, redrives in sent)
        )
        await self._ledger.mark_letters_redriven(
            {letter.id: redrives for letter, redrives in sent}, at
        )
        for letter, _ in sent:
            letter.delivery.ack()
        tally.done += len(sent)


def _refusal(error: PublishError) -> str:
    if isinstance(error, LaneFull):
        return f"still dead: {error.routing_key} is full; redrive the rest when there is room"
    return f"still dead: {error}"
