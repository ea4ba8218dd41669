"""Manage schedules: add, remove, pause, resume, fire and list them, and load the default entries
and those of the file into the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import NAMESPACE_URL, uuid5

from switchyard.services.common.errors import ConflictError, NotFoundError
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registered_types import learn_missing_type
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.job_ids import JobIds
from switchyard.services.engine.records.schedules import Firing, FiringOutcome, ScheduleRecord
from switchyard.services.engine.schedules.entry import ScheduleEntry
from switchyard.services.engine.schedules.file import read_file
from switchyard.services.engine.schedules.rule import with_jitter
from switchyard.services.engine.wings import load_contributions

MAX_SCHEDULES = 1_000
"""Schedules of one system, at most."""
ADDED, FILE, DEFAULT = "added", "file", "default"
"""Origins of schedules."""
_HOW_TO_REMOVE = {
    FILE: "it stands in the file of JOBS_SCHEDULES: change it there",
    DEFAULT: "it is one of the default ones: pause it, or set JOBS_DEFAULT_SCHEDULES=false",
}
_NAMESPACE = uuid5(NAMESPACE_URL, "https://switchyard.invalid/schedules")


class UnknownSchedule(NotFoundError):
    """There is no schedule of that name."""


class ScheduleConflict(ConflictError):
    """The name is taken, or the schedule can't be changed here; the text says why."""


def job_id_of(ids: JobIds, name: str, due_at: float) -> str:
    """Return the id of the job of a due time: the same each time that it is published."""
    return ids.derive(_NAMESPACE, f"{name}/{due_at!r}")


def due_firing(
    ids: JobIds, name: str, due_at: float, now: float, note: str | None = None
) -> Firing:
    """Return the record of a due time that is to be fired."""
    return Firing(name, due_at, FiringOutcome.DUE, job_id_of(ids, name, due_at), now, note=note)


class Schedules:
    """Manages the schedules of one system. The payloads that it returns have no secrets. All
    methods raise LedgerError."""

    def __init__(self, ledger: Ledger, registry: Registry) -> None:
        self._ledger = ledger
        self._registry = registry

    async def add(self, entry: ScheduleEntry, *, remote: bool, created_by: str) -> ScheduleRecord:
        """Add a schedule. Raises InvalidSchedule, ScheduleConflict."""
        await learn_missing_type(self._registry, self._ledger, entry.job.partition(".")[2])
        entry.check(self._registry, remote=remote)
        if entry.payload_version is None:
            # Later releases upgrade the payload from this version.
            version = self._registry.get_publishable(entry.job.partition(".")[2]).version
            entry = entry.model_copy(update={"payload_version": version})
        now = await self._now()
        record = entry.record(now, origin=ADDED, remote=remote, created_by=created_by)
        added = await self._ledger.schedules.add_schedule(record, max_number=MAX_SCHEDULES)
        if added is None:
            raise ScheduleConflict(f"there are {MAX_SCHEDULES:,} schedules: remove one first")
        if not added:
            raise ScheduleConflict(
                f"there is a schedule {entry.name!r}: choose another name, or remove it first"
            )
        return self._without_secrets(record)

    async def remove(self, name: str) -> None:
        """Remove an added schedule with its history. Raises UnknownSchedule, ScheduleConflict."""
        record = await self._read(name)
        if record.origin != ADDED:
            raise ScheduleConflict(f"{name} can't be removed here: {_HOW_TO_REMOVE[record.origin]}")
        await self._ledger.schedules.remove_schedule(name, ADDED)

    async def pause(self, name: str) -> ScheduleRecord:
        """Pause a schedule: nothing is due until it is resumed. Raises UnknownSchedule."""
        record = await self._read(name)
        if record.paused_at is None:
            now = await self._now()
            await self._ledger.schedules.set_pause(name, now, record.next_at, record.fire_at)
            record = replace(record, paused_at=now)
        return self._without_secrets(record)

    async def resume(self, name: str) -> ScheduleRecord:
        """Resume a schedule with its next due time; times that passed meanwhile are skipped.

        Raises UnknownSchedule, InvalidSchedule.
        """
        record = await self._read(name)
        if record.paused_at is not None:
            due = ScheduleEntry.from_record(record).rule().after(await self._now())
            fire_at = with_jitter(name, due, record.jitter)
            await self._ledger.schedules.set_pause(name, None, due, fire_at)
            record = replace(record, paused_at=None, next_at=due, fire_at=fire_at)
        return self._without_secrets(record)

    async def run(self, name: str, by: str) -> Firing:
        """Fire a schedule now, paused or not: a scheduler publishes the job within about a second.

        Raises UnknownSchedule, InvalidSchedule where its job would be refused.
        """
        record = await self._read(name)
        ScheduleEntry.from_record(record).check(self._registry, remote=record.remote)
        now = await self._now()
        ids = await self._ledger.system.job_ids()
        firing = due_firing(ids, name, now, now, f"at once, by {by}")
        await self._ledger.schedules.record_firing(firing)
        return firing

    async def list_all(self) -> list[tuple[ScheduleRecord, Firing | None]]:
        """Return all schedules by name, each with its latest firing."""
        last = await self._ledger.schedules.last_firings()
        records = await self._ledger.schedules.schedules()
        return [(self._without_secrets(each), last.get(each.name)) for each in records]

    async def get(self, name: str) -> ScheduleRecord:
        """Return a schedule. Raises UnknownSchedule."""
        return self._without_secrets(await self._read(name))

    def _without_secrets(self, record: ScheduleRecord) -> ScheduleRecord:
        job_type = record.routing_key.partition(".")[2]
        return replace(record, payload=self._registry.hide_secrets(job_type, record.payload))

    async def _read(self, name: str) -> ScheduleRecord:
        record = await self._ledger.schedules.schedule(name)
        if record is None:
            raise UnknownSchedule(
                f"there is no schedule {name!r}: `jobctl schedules list` shows those there are"
            )
        return record

    async def history(self, name: str, limit: int) -> list[Firing]:
        """Return the firings of a schedule, the latest first. Raises UnknownSchedule."""
        await self._read(name)
        return await self._ledger.schedules.firings(name, limit)

    async def load(self, settings: Settings) -> tuple[list[str], list[str]]:
        """Load the entries of the file and the default ones into the ledger; an entry of the file
        replaces the default one of its name. Return the names of new or changed schedules, and of
        removed ones.

        Raises InvalidScheduleFile, ScheduleConflict where a name is taken.
        """
        path = settings.schedules
        from_file = [] if path is None else read_file(path, self._registry)
        names = {each.name for each in from_file}
        defaults = default_entries(self._registry) if settings.default_schedules else []
        defaults = [each for each in defaults if each.name not in names]
        changed, removed = await self._replace(FILE, from_file)
        changed_defaults, removed_defaults = await self._replace(DEFAULT, defaults)
        return changed + changed_defaults, removed + removed_defaults

    async def _replace(
        self, origin: str, entries: Sequence[ScheduleEntry]
    ) -> tuple[list[str], list[str]]:
        """Replace the schedules of an origin by these entries. Returns as `load` does."""
        current = {each.name: each for each in await self._ledger.schedules.schedules()}
        now = await self._now()
        changed = []
        for entry in entries:
            record = entry.record(now, origin=origin, remote=False, created_by=origin)
            before = current.get(entry.name)
            if before is not None and before.origin == ADDED:
                raise ScheduleConflict(
                    f"the name {entry.name!r} is taken by a schedule that was added: "
                    f"`jobctl schedules remove {entry.name}`, or choose another"
                )
            if before is not None:
                record = replace(record, created_at=before.created_at, paused_at=before.paused_at)
                if (before.cron, before.timezone) == (record.cron, record.timezone):
                    record = replace(
                        record,
                        next_at=before.next_at,
                        fire_at=with_jitter(entry.name, before.next_at, record.jitter),
                    )
            if record != before:
                changed.append(record)
        names = {each.name for each in entries}
        removed = [
            each.name
            for each in current.values()
            if each.origin == origin and each.name not in names
        ]
        if changed or removed:
            await self._ledger.schedules.replace_schedules(origin, changed, removed)
        return [each.name for each in changed], removed

    async def _now(self) -> float:
        """Return the ledger's time, the same for every host."""
        _, now = await self._ledger.schedules.due_schedules(1)
        return now


def default_entries(registry: Registry) -> list[ScheduleEntry]:
    """Return the default entries of all wings whose job types this process knows. Raises
    InvalidWing."""
    entries = [each for of_wing in load_contributions("default_schedules") for each in of_wing]
    return [each for each in entries if each.job.partition(".")[2] in registry]
