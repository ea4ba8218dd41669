"""Share job types by the ledger: processes with their modules register them, and all processes can
publish them.

A payload of a registered type is validated by its JSON Schema. Unlike the model, that has no
validators, and converts nothing: `"5"` is not an integer.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from itertools import islice
from typing import Any, ClassVar

import structlog
from pydantic import BaseModel, ConfigDict, model_validator

from switchyard.broker.message import FIRST_PAYLOAD_VERSION
from switchyard.broker.task_supervisor import TaskSupervisor
from switchyard.services.engine.jobs.local_fields import KeyMarkedPayload, local_keys
from switchyard.services.engine.jobs.registry import (
    JobType,
    Registry,
    RegistryError,
    UnknownJobType,
    check_job_type,
)
from switchyard.services.engine.jobs.secret_fields import has_mark, secret_schema
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.job_types import (
    MAX_SCHEMA_BYTES,
    TOUCH_INTERVAL,
    JobTypeRecord,
)

LEARN_INTERVAL = 5.0
"""Seconds between reads of the registered types, in processes without heartbeats."""
MIN_LEARN_INTERVAL = 1.0
"""Seconds between two reads that are caused by unknown types."""
MAX_BACKTRACKS, MAX_PATTERN_BYTES = 100_000, 256 * 1024
"""Steps back that matching a pattern may take, and size of a compiled pattern."""
VERSION_KEYWORD = "x-payload-version"
"""Keyword in the JSON Schema of a payload with its version, if that is not the first."""
MAX_ERRORS, MAX_ERROR_LENGTH = 5, 200
"""Errors that are reported of one payload, and characters of each, at most."""


class RegisteredPayload(KeyMarkedPayload):
    """Base of payloads that are validated by a registered JSON Schema."""

    model_config = ConfigDict(extra="allow")
    record: ClassVar[JobTypeRecord]
    validator: ClassVar[Any] = None
    """Compiled at the first payload."""

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the registered schema."""
        schema: dict[str, Any] = json.loads(json.dumps(cls.record.payload_schema))
        return schema

    @model_validator(mode="before")
    @classmethod
    def _validate_by_schema(cls, values: Any) -> Any:
        errors = [
            f"{'.'.join(map(str, each.instance_path)) or 'payload'}: "
            f"{each.message[:MAX_ERROR_LENGTH]}"
            for each in islice(cls._validator().iter_errors(values), MAX_ERRORS)
        ]
        if errors:
            raise ValueError("; ".join(errors))
        return values

    @classmethod
    def _validator(cls) -> Any:
        """Return the compiled schema. Raises UnknownJobType for one that can't be used."""
        if cls.validator is None:
            cls.validator = _compile_schema(cls.record)
        return cls.validator


def _compile_schema(record: JobTypeRecord) -> Any:
    import jsonschema_rs

    try:
        return jsonschema_rs.Draft202012Validator(
            dict(record.payload_schema),
            offline=True,  # a schema must not make this host fetch an address
            mask="the value" if has_mark(record.payload_schema) else None,
            pattern_options=jsonschema_rs.FancyRegexOptions(
                backtrack_limit=MAX_BACKTRACKS, size_limit=MAX_PATTERN_BYTES
            ),
        )
    except (ValueError, RecursionError) as error:
        raise UnknownJobType(
            f"the JSON Schema that {record.registered_by} has registered of {record.name} can't "
            f"be used here ({' '.join(str(error).split())[:300]}): load its module, "
            f"{record.module}, with JOBS_MODULES"
        ) from error


def record_of(job_type: JobType, registered_by: str) -> JobTypeRecord:
    """Return the record of a job type for processes without its module. Raises RegistryError where
    its schema is larger than MAX_SCHEMA_BYTES."""
    fields: dict[str, Any] = {
        "name": job_type.name,
        "worker": job_type.worker,
        "lanes": job_type.lanes,
        "timeout": job_type.timeout,
        "max_attempts": job_type.max_attempts,
        "payload_schema": _schema_of(job_type.payload_model, job_type.version),
        "local_keys": local_keys(job_type.payload_model),
        "module": job_type.handler.__module__,
    }
    if len(json.dumps(fields["payload_schema"])) > MAX_SCHEMA_BYTES:
        raise RegistryError(
            f"the payload of job type {job_type.name!r} has a JSON Schema of more than "
            f"{MAX_SCHEMA_BYTES:,} bytes: only processes with its module can publish it"
        )
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    return JobTypeRecord(
        **fields, digest=digest, registered_by=registered_by, registered_at=0, seen_at=0
    )


@lru_cache(maxsize=1024)  # pydantic makes a schema anew each time, in milliseconds
def _schema_of(payload_model: type[BaseModel], version: int) -> Mapping[str, Any]:
    secrets = secret_schema(payload_model)
    schema = payload_model.model_json_schema() if secrets is None else dict(secrets.root)
    if version != FIRST_PAYLOAD_VERSION:
        schema[VERSION_KEYWORD] = version
    return schema


def _version_of(record: JobTypeRecord) -> int:
    """Return the payload's version. Raises RegistryError: anybody may have registered the
    schema."""
    version = record.payload_schema.get(VERSION_KEYWORD, FIRST_PAYLOAD_VERSION)
    if not isinstance(version, int) or isinstance(version, bool):
        raise RegistryError(f"job type {record.name!r}: {VERSION_KEYWORD} must be a number")
    return version


def job_type_from(record: JobTypeRecord) -> JobType:
    """Make a type that can be published but not run. Raises RegistryError for an invalid record."""

    class Payload(RegisteredPayload):
        pass

    Payload.record = record
    Payload.local_keys = dict(record.local_keys)

    async def run(payload: Any, ctx: Any) -> None:
        raise UnknownJobType(f"{record.name} can't be run here: load {record.module}")

    return check_job_type(
        JobType(
            name=record.name,
            worker=record.worker,
            lanes=record.lanes,
            payload_model=Payload,
            handler=run,
            timeout=record.timeout,
            max_attempts=record.max_attempts,
            isolation="task",
            memory_limit_mb=None,
            version=_version_of(record),
            is_registered=True,
        )
    )


class JobTypeSync:
    """Registers the types of a process in the ledger, and adds those of others to its registry.
    Workers replace registered types by their own; other processes, which may be older or newer,
    register only missing types."""

    def __init__(
        self,
        registry: Registry,
        ledger: Ledger,
        *,
        own_types: Iterable[JobType],
        holder: str,
        is_worker: bool,
    ) -> None:
        self._registry = registry
        self._ledger = ledger
        self._own_types = tuple(own_types)
        self._holder = holder
        self._is_worker = is_worker
        self._log = structlog.get_logger("job types")
        self._touched_at: float | None = None
        self._registered_names: list[str] = []
        self._types_version: str | None = None
        """Version of the ledger's job types that `sync_if_changed` got last."""
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sync once, if the ledger can be reached, and then regularly."""
        background = TaskSupervisor(self._log)
        await self._try_to_sync()
        background.start("job types", self._keep_syncing)
        try:
            yield
        finally:
            await background.close()

    def sync_if_changed(self, version: str | None) -> None:
        """Sync soon if this version of the ledger's types, which a heartbeat returned, differs from
        the last one. With a call for each heartbeat, no other reads are needed."""
        if version is not None and version != self._types_version:
            self._types_version = version
            self._changed.set()

    async def _keep_syncing(self) -> None:
        while True:
            pause = LEARN_INTERVAL if self._types_version is None else TOUCH_INTERVAL
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            self._changed.clear()
            await self._try_to_sync()

    async def _try_to_sync(self) -> None:
        try:
            await self.sync()
        except LedgerError as error:
            self._types_version = None  # the next heartbeat starts another sync
            self._log.warning("job types not exchanged", error=str(error))

    async def sync(self) -> None:
        """Register the own types if that is due, and read those of others. Raises LedgerError."""
        now = self._ledger.clock.time()
        if self._touched_at is None:
            await self._register(now)
        elif now - self._touched_at >= TOUCH_INTERVAL:
            # A ledger that was restored from an older copy may lack them.
            if not await self._ledger.job_types.touch(self._registered_names, now):
                await self._register(now)
            self._touched_at = now
        await learn_types(self._registry, self._ledger)

    async def _register(self, now: float) -> None:
        records = []
        for job_type in self._own_types:
            try:
                records.append(record_of(job_type, self._holder))
            except RegistryError as error:
                self._log.warning("job type not registered", error=str(error))
            await asyncio.sleep(0)  # each schema takes milliseconds: let other tasks run
        await self._ledger.job_types.register(records, now, replace=self._is_worker)
        self._registered_names = [each.name for each in records]
        self._touched_at = now


async def learn_types(registry: Registry, ledger: Ledger) -> None:
    """Add the types that other processes have registered to the registry. Raises LedgerError."""
    registry.learned_at = time.monotonic()
    digests = await ledger.job_types.digests()
    usable = {
        name: each
        for name, each in registry.registered.items()
        if digests.get(name) == _digest(each)
    }
    unusable = {
        name: digest for name, digest in registry.unusable.items() if digests.get(name) == digest
    }
    missing = [
        name
        for name in digests
        if name not in registry and name not in usable and name not in unusable
    ]
    if missing:
        for record in await ledger.job_types.list_job_types(missing):
            try:
                usable[record.name] = job_type_from(record)
            except RegistryError as error:
                log = structlog.get_logger("job types")
                log.warning("registered job type unusable", error=str(error))
            await asyncio.sleep(0)  # each takes milliseconds: let other tasks run
        unusable |= {name: digests[name] for name in missing if name not in usable}
    registry.set_registered(usable.values(), unusable)


async def learn_missing_type(registry: Registry, ledger: Ledger, name: str) -> None:
    """Read the registered types if the registry does not know this one, but not within
    MIN_LEARN_INTERVAL seconds after the last read. Raises LedgerError."""
    if name in registry or name in registry.registered:
        return
    if time.monotonic() - registry.learned_at >= MIN_LEARN_INTERVAL:
        await learn_types(registry, ledger)


def _digest(job_type: JobType) -> str:
    model = job_type.payload_model
    return model.record.digest if issubclass(model, RegisteredPayload) else ""
