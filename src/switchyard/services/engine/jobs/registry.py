"""Declare and collect job types: their handlers, kinds of worker, and lanes.

`@job` marks a function; `Registry.load` imports modules and collects what they have marked.
Nothing is registered globally: two registries in one process do not see each other.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any, Literal, TypeVar, get_type_hints

from pydantic import BaseModel, ValidationError

from switchyard.broker.lanes import LANES, Lane, Route, lane_named, queue_name
from switchyard.broker.message import (
    DEFAULT_MAX_ATTEMPTS,
    FIRST_PAYLOAD_VERSION,
    MAX_PAYLOAD_VERSION,
    describe,
)
from switchyard.broker.patterns import describe_field_error
from switchyard.broker.validation import list_errors
from switchyard.broker.wording import suggest
from switchyard.services.common.errors import (
    ConflictError,
    InvalidInput,
    Misconfigured,
    NotFoundError,
)
from switchyard.services.engine.jobs.limits import Limit
from switchyard.services.engine.jobs.local_fields import Refusal, local_fields, refusals
from switchyard.services.engine.jobs.secret_fields import (
    HIDDEN,
    Scrubber,
    SecretSchema,
    has_hidden_secrets,
    hide_secrets,
    hide_secrets_in_part,
    secret_schema,
)
from switchyard.services.engine.wings import job_modules, missing_wings_hint

Handler = Callable[..., Any]
Upgrade = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Turns a payload of one version into one of the next; it may change its argument."""
AnyHandler = TypeVar("AnyHandler", bound=Handler)
_MARK = "__job_type__"
"""Attribute of a declared handler with its JobType."""


class RegistryError(Misconfigured):
    """A job type is declared wrongly, twice, or its module can't be imported."""


@dataclass(frozen=True, slots=True)
class PayloadFault:
    """An error at one place of a payload, without the value."""

    place: tuple[str | int, ...]
    message: str


class UnknownJobType(NotFoundError):
    """No module that was loaded declares this job type."""


class InvalidPayload(InvalidInput):
    """The payload does not fit the job type's model; the text names the fields."""

    def __init__(self, message: str, faults: Sequence[PayloadFault] = ()) -> None:
        self.faults = tuple(faults)
        """The errors by their places in the payload; empty where these are unknown."""
        super().__init__(message)


class UpgradeFailed(InvalidPayload):
    """The payload is of an older version, and can't be upgraded to the type's version."""


class NewerPayload(ConflictError):
    """The payload is of a newer version than this process knows of its type."""

    def __init__(self, job_type: JobType, version: int) -> None:
        super().__init__(
            f"the payload of {job_type.name} is of version {version}, and the module that is "
            f"loaded here knows version {job_type.version}: start workers of the newer release"
        )


class RemoteFieldForbidden(InvalidPayload):
    """The payload comes from outside and sets fields that only the system's hosts may set."""

    def __init__(self, job_type: str, refused: tuple[Refusal, ...]) -> None:
        self.refused = refused
        text = "; ".join(each.message for each in refused)
        super().__init__(f"payload of {job_type}: {text}")


@dataclass(frozen=True, slots=True)
class JobType:
    """Declaration of one job type."""

    name: str
    worker: str
    lanes: tuple[str, ...]
    payload_model: type[BaseModel]
    handler: Handler
    timeout: float
    """Seconds that one attempt may take."""
    max_attempts: int
    isolation: Literal["task", "process"]
    """`task`: an async handler in the worker's event loop. `process`: a sync, CPU-bound handler
    in a process of its own, killed at the time limit."""
    memory_limit_mb: int | None
    """Address space of that process, in MiB; None for no limit. Only for `process`."""
    cpu_limit: int | None = None
    """Seconds of processor time that one attempt may take; None for no limit but `timeout`. Unlike
    clock time, it hardly depends on the machine's other work: a job that exceeds it would do so
    again, and is not retried. Only for `process`."""
    limits: tuple[Limit, ...] = ()
    """Named limits: a job needs a permit of each before it runs."""
    version: int = FIRST_PAYLOAD_VERSION
    """Version of the payload's format in `payload_model`."""
    upgrades: tuple[tuple[int, Upgrade], ...] = ()
    """Functions that each turn a payload of the given version into one of the next, in order, up to
    `version`."""
    is_registered: bool = False
    """Whether the type is only known from the ledger: this process can publish it, but not run
    it."""

    def read(self, payload: Mapping[str, Any], version: int) -> BaseModel:
        """Upgrade a payload of that version, validate it, and return it as the model. The argument
        is not changed.

        Raises NewerPayload, UpgradeFailed, and what `validate` raises.
        """
        return self.validate(self.upgrade(payload, version))

    def upgrade(self, payload: Mapping[str, Any], version: int) -> Mapping[str, Any]:
        """Return a payload of that version upgraded to the type's, without validation. Raises
        NewerPayload, UpgradeFailed."""
        if version == self.version:
            return payload
        if version > self.version:
            raise NewerPayload(self, version)
        steps = dict(self.upgrades)
        upgraded = copy.deepcopy(dict(payload))
        for older in range(version, self.version):
            where = f"payload of {self.name}: it can't be upgraded from version {older}"
            if older not in steps:
                raise UpgradeFailed(f"{where}: the type declares no upgrade from there")
            try:
                payload_after = steps[older](upgraded)
            except Exception as error:  # a function of the user's may raise anything
                reason = Scrubber.from_payload(payload, self.secrets).scrub(str(error))
                cause = error if self.secrets is None else None  # its traceback quotes values
                raise UpgradeFailed(f"{where}: {type(error).__name__}: {reason}") from cause
            if not isinstance(payload_after, Mapping):
                raise UpgradeFailed(
                    f"{where}: its function returned {type(payload_after).__name__}"
                )
            upgraded = dict(payload_after)
        return upgraded

    @property
    def secrets(self) -> SecretSchema | None:
        """The payload's JSON Schema where it marks secrets; None where it marks none."""
        return secret_schema(self.payload_model)

    def can_read(self, version: int) -> bool:
        """Tell whether this process can read payloads of that version; if not, workers can."""
        if self.is_registered:
            return version == self.version
        return version <= self.version

    def validate(self, payload: Mapping[str, Any]) -> BaseModel:
        """Return the payload as its model. Raises InvalidPayload, without pydantic's error as its
        cause, as that quotes values; UnknownJobType where the schema that another process has
        registered can't be used."""
        if has_hidden_secrets(payload, self.secrets):
            raise InvalidPayload(
                f"payload of {self.name}: {HIDDEN} is only shown in the place of a secret: give "
                "its value"
            )
        try:
            return self.payload_model.model_validate(payload)
        except UnknownJobType:
            raise
        except ValidationError as error:
            scrubber = Scrubber.from_payload(payload, self.secrets)
            text = f"payload of {self.name}: {scrubber.scrub(describe(error))}"
            raise InvalidPayload(text, _payload_faults(error, scrubber)) from None
        except Exception as error:  # a validator of the model may raise anything
            raise InvalidPayload(f"payload of {self.name}: {type(error).__name__}") from None

    def validate_remote(
        self,
        payload: Mapping[str, Any],
        vouched: Mapping[str, Any] | None = None,
        *,
        version: int | None = None,
    ) -> BaseModel:
        """Validate a payload from outside, such as over HTTP. All endpoints use this rule.

        LocalOnly fields must be unset, or as in `vouched`: values that this system has set, or
        that were there before. A payload of an older `version` is upgraded first, and `vouched`
        with it. If this process can't do that, it does not know the local fields, and refuses the
        payload. Raises InvalidPayload, RemoteFieldForbidden.
        """
        allowed = dict(vouched or {})
        if version is not None and version != self.version:
            if not self.can_read(version):
                raise InvalidPayload(
                    f"payload of {self.name}: it is of version {version}, which only a process "
                    "that has loaded the type's module, as new as that, can read"
                )
            with suppress(UpgradeFailed):  # `vouched` may be a part of a payload
                allowed |= self.upgrade(allowed, version)
            payload = self.upgrade(payload, version)
        validated = self.validate(payload)
        if refused := refusals(validated, payload, allowed):
            raise RemoteFieldForbidden(self.name, refused)
        return validated

    @property
    def routes(self) -> tuple[Route, ...]:
        """Its routing keys, each with the kind of worker."""
        return tuple(Route(lane, self.name, self.worker) for lane in self.lanes)


def _payload_faults(error: ValidationError, scrubber: Scrubber) -> list[PayloadFault]:
    return [
        PayloadFault(
            tuple(scrubber.scrub(step) if isinstance(step, str) else step for step in each["loc"]),
            scrubber.scrub(describe_field_error(each)),
        )
        for each in list_errors(error)
    ]


def job(
    name: str,
    *,
    worker: str,
    lanes: Iterable[str],
    timeout: float = 300,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    isolation: Literal["task", "process"] = "task",
    memory_limit_mb: int | None = None,
    cpu_limit: int | None = None,
    limits: Iterable[Limit] = (),
    version: int = FIRST_PAYLOAD_VERSION,
    upgrade: Upgrade | Mapping[int, Upgrade] | None = None,
) -> Callable[[AnyHandler], AnyHandler]:
    """Declare the function as the handler of a job type.

    The function takes `(payload, ctx)`; the annotation of `payload` is a pydantic model. With
    isolation `task` it is a coroutine function, with `process` a plain function that stands at
    the top level of its module. `timeout` is in seconds, `memory_limit_mb` in MiB, `cpu_limit` in
    seconds of processor time; a job that takes more is not retried. `limits` hold over all workers
    together; a job that gets no permit waits without occupying a slot.

    `version` is that of the payload; each change that makes older payloads invalid adds one.
    `upgrade` turns the dict of a payload of the version before into one of this version; for
    several older versions, it is a mapping from each of them to the function that makes the next
    (docs/payloads.md). Raises RegistryError for an inconsistent declaration.
    """

    def mark(handler: AnyHandler) -> AnyHandler:
        setattr(
            handler,
            _MARK,
            check_job_type(
                JobType(
                    name=name,
                    worker=worker,
                    lanes=tuple(lanes),
                    payload_model=_payload_model(handler),
                    handler=handler,
                    timeout=timeout,
                    max_attempts=max_attempts,
                    isolation=isolation,
                    memory_limit_mb=memory_limit_mb,
                    cpu_limit=cpu_limit,
                    limits=tuple(limits),
                    version=version,
                    upgrades=_upgrades(version, upgrade),
                )
            ),
        )
        return handler

    return mark


def _upgrades(
    version: int, upgrade: Upgrade | Mapping[int, Upgrade] | None
) -> tuple[tuple[int, Upgrade], ...]:
    if upgrade is None:
        return ()
    return tuple(
        sorted((upgrade if isinstance(upgrade, Mapping) else {version - 1: upgrade}).items())
    )


def job_type_of(handler: Handler) -> JobType:
    """Return the declaration of a function that `@job` has marked. Raises RegistryError."""
    declared = getattr(handler, _MARK, None)
    if not isinstance(declared, JobType):
        name = getattr(handler, "__qualname__", repr(handler))
        raise RegistryError(f"{name} is not a job's handler: mark it with @job(…)")
    return declared


@cache  # reading all members of a module copies their pages, in each forked process
def _job_types_in(module: ModuleType) -> tuple[JobType, ...]:
    """Return the job types that a module declares itself, by the names of their handlers."""
    declared = (
        getattr(handler, _MARK, None)
        for _, handler in inspect.getmembers(module, inspect.isfunction)
        if handler.__module__ == module.__name__
    )
    return tuple(each for each in declared if isinstance(each, JobType))


class Registry:
    """The job types that this process knows: those of its loaded modules, which it can run, and
    those registered in the ledger by others, which it can only publish."""

    def __init__(self, types: Iterable[JobType] = ()) -> None:
        self.process = "this process"
        """Name of this process in errors."""
        self.learned_at = float("-inf")
        """When other processes' types were last read from the ledger; seconds, on the monotonic
        clock."""
        self.unusable: dict[str, str] = {}
        """Digests of registered types that are invalid here, by name."""
        self._registered: dict[str, JobType] = {}
        self._types: dict[str, JobType] = {}
        for job_type in types:
            self.add(job_type)

    @classmethod
    def load(cls, modules: Iterable[str] | None = None) -> Registry:
        """Import modules, those of the wings where none are given, and collect the job types that
        they declare. Raises RegistryError, InvalidWing."""
        registry = cls()
        for name in job_modules() if modules is None else modules:
            try:
                module = importlib.import_module(name)
            except ImportError as error:
                raise RegistryError(f"can't import the job module {name!r}: {error}") from error
            except RegistryError:
                raise
            except (Exception, SystemExit) as error:  # a module of the user's may raise anything
                raise RegistryError(
                    f"can't import the job module {name!r}: {type(error).__name__}: {error}"
                    f"{_location_of(error)}"
                ) from error
            for declared in _job_types_in(module):
                registry.add(declared)
        return registry

    def add(self, job_type: JobType) -> None:
        """Add a type. Raises RegistryError when another handler has that name, or when the payload
        has no JSON Schema, which shows its local fields."""
        registered = self._types.get(job_type.name)
        if registered is not None and registered != job_type:
            raise RegistryError(
                f"job type {job_type.name!r} is declared twice: in {registered.handler.__module__} "
                f"and in {job_type.handler.__module__}"
            )
        for limit in job_type.limits:
            self._check_shared_limit(limit, job_type)
        try:
            local_fields(job_type.payload_model)
        except Exception as error:  # from pydantic, or from a type in the payload
            raise RegistryError(
                f"the payload of job type {job_type.name!r} has no JSON Schema: {error}"
            ) from error
        self._types[job_type.name] = job_type

    def _check_shared_limit(self, limit: Limit, job_type: JobType) -> None:
        """Check that types that name the same limit declare the same. Raises RegistryError."""
        for other in self._types.values():
            for other_limit in other.limits:
                is_same = other_limit.size == limit.size and (other_limit.key is None) == (
                    limit.key is None
                )
                if other_limit.name == limit.name and not is_same:
                    raise RegistryError(
                        f"the limit {limit.name!r} has other numbers in {job_type.name!r} than in "
                        f"{other.name!r}: declare it once, and name it in both"
                    )

    def set_registered(self, types: Iterable[JobType], unusable: Mapping[str, str]) -> None:
        """Set the types of other processes. Types of modules loaded here take precedence."""
        self._registered = {each.name: each for each in types}
        self.unusable = dict(unusable)

    @property
    def registered(self) -> Mapping[str, JobType]:
        """Types that are known from other processes alone, by name."""
        return {name: each for name, each in self._registered.items() if name not in self._types}

    def get(self, name: str) -> JobType:
        """Return a type that can be run here. Raises UnknownJobType, which suggests similar
        names."""
        job_type = self._types.get(name)
        if job_type is None:
            raise self._unknown(name)
        return job_type

    def get_publishable(self, name: str) -> JobType:
        """Return a type that can be published here. Raises UnknownJobType, which suggests similar
        names."""
        job_type = self.find_publishable(name)
        if job_type is None:
            raise self._unknown(name)
        return job_type

    def find_publishable(self, name: str) -> JobType | None:
        """Return a type that can be published here; None where there is none of that name."""
        return self._types.get(name) or self._registered.get(name)

    def secrets_of(self, name: str) -> SecretSchema | None:
        """Return the JSON Schema of a type's payload where it has secrets; None where it has none,
        or the type is unknown."""
        job_type = self.find_publishable(name)
        return None if job_type is None else job_type.secrets

    def hide_secrets(self, name: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Return the payload of a type with its secrets hidden."""
        visible: dict[str, Any] = hide_secrets(dict(payload), self.secrets_of(name))
        return visible

    def hide_secrets_in_part(self, part: Any) -> Any:
        """Return a value that may be a part of a payload, of any type, with the secrets of all
        types hidden."""
        for secrets in filter(None, (each.secrets for each in self.publishable_types)):
            part = hide_secrets_in_part(part, secrets)
        return part

    @property
    def publishable_types(self) -> list[JobType]:
        """All types that can be published here, sorted by name."""
        return sorted((*self, *self.registered.values()), key=lambda job_type: job_type.name)

    def _unknown(self, name: str) -> UnknownJobType:
        names = {**self._registered, **self._types}
        return UnknownJobType(
            f"no job type {name!r} here: {self.process} has not loaded its module, and no worker "
            "has registered it in the ledger; one of your own needs its module in JOBS_MODULES, "
            f"where its workers are started, and then a restart; "
            f"{suggest(name, names)}{missing_wings_hint()}"
        )

    def __contains__(self, name: object) -> bool:
        return name in self._types

    def __iter__(self) -> Iterator[JobType]:
        return iter(sorted(self._types.values(), key=lambda job_type: job_type.name))

    @property
    def routes(self) -> tuple[Route, ...]:
        """All routing keys with their workers, for the topology's bindings."""
        return tuple(sorted(route for each in self.publishable_types for route in each.routes))

    def queues_by_lane(self, lanes: Iterable[Lane] = LANES) -> dict[str, tuple[str, ...]]:
        """Return the names of each lane's queues: one for each kind of worker that is declared for
        the lane or has a job type in it."""
        routes = self.routes
        return {
            lane.name: tuple(
                dict.fromkeys(
                    [queue_name(lane.name, worker) for worker in lane.workers]
                    + [route.queue for route in routes if route.lane == lane.name]
                )
            )
            for lane in lanes
        }

    def lanes_of(self, worker: str) -> tuple[str, ...]:
        """Return the lanes in which this kind of worker has job types, most urgent first."""
        used = {lane for job_type in self if job_type.worker == worker for lane in job_type.lanes}
        return tuple(lane.name for lane in LANES if lane.name in used)


def _location_of(error: BaseException) -> str:
    """Return file and line of an error; empty for a SyntaxError, whose text has them."""
    if isinstance(error, SyntaxError):
        return ""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f" ({last.filename}, line {last.lineno})"


def hint_of(function: Callable[..., Any], parameter: str) -> Any:
    """Resolve the type hint of one parameter; None where it has none. Other hints, such as names
    imported under TYPE_CHECKING, are not resolved. Raises RegistryError."""
    declared = inspect.unwrap(function)
    hints = getattr(declared, "__annotations__", {})
    if parameter not in hints:
        return None
    holder = SimpleNamespace(__annotations__={parameter: hints[parameter]})
    try:
        return get_type_hints(holder, globalns=getattr(declared, "__globals__", {}))[parameter]
    except NameError as error:
        raise RegistryError(
            f"{getattr(declared, '__qualname__', declared)}: the type of {parameter} can't be "
            f"resolved ({error}): import it outside of TYPE_CHECKING, at the module's top"
        ) from error


def _payload_model(handler: Handler) -> type[BaseModel]:
    parameters = list(inspect.signature(handler).parameters)
    model = hint_of(handler, parameters[0]) if parameters else None
    if len(parameters) != 2 or not (inspect.isclass(model) and issubclass(model, BaseModel)):
        raise RegistryError(
            f"{handler.__qualname__} must take (payload, ctx), payload annotated with a "
            "pydantic model"
        )
    return model


def check_job_type(job_type: JobType) -> JobType:
    """Check a declaration, and return it. Raises RegistryError."""
    name = job_type.name
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name):
        raise RegistryError(f"job type {name!r}: use lower-case letters, digits and _")
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,31}", job_type.worker):
        raise RegistryError(f"worker {job_type.worker!r} of {name}: use lower-case letters and _")
    if not job_type.lanes:
        raise RegistryError(f"job type {name!r} names no lane")
    for lane in job_type.lanes:
        try:
            lane_named(lane)
        except ValueError as error:
            raise RegistryError(f"job type {name!r}: {error}") from error
    if job_type.timeout <= 0:
        raise RegistryError(f"job type {name!r}: timeout must be positive")
    is_async = inspect.iscoroutinefunction(job_type.handler)
    if job_type.isolation == "task" and not is_async:
        raise RegistryError(f"handler of {name!r} must be `async def`, or use isolation='process'")
    if job_type.isolation == "process" and is_async:
        raise RegistryError(f"handler of {name!r} must be a plain `def` with isolation='process'")
    for limit in ("memory_limit_mb", "cpu_limit"):
        if getattr(job_type, limit) is not None and job_type.isolation != "process":
            raise RegistryError(f"job type {name!r}: {limit} needs isolation='process'")
    if job_type.cpu_limit is not None and job_type.cpu_limit < 1:
        raise RegistryError(f"job type {name!r}: cpu_limit must be 1 or more")
    _check_limits(job_type)
    _check_version(job_type)
    return job_type


def _check_version(job_type: JobType) -> None:
    where = f"job type {job_type.name!r}"
    if not FIRST_PAYLOAD_VERSION <= job_type.version <= MAX_PAYLOAD_VERSION:
        raise RegistryError(f"{where}: its version must be 1 to {MAX_PAYLOAD_VERSION:,}")
    older = [version for version, _ in job_type.upgrades]
    if older and older != list(range(max(1, older[0]), job_type.version)):
        raise RegistryError(
            f"{where}: `upgrade` must lead step by step to version {job_type.version}, and names "
            f"{', '.join(map(str, older))}"
        )
    for version, function in job_type.upgrades:
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise RegistryError(
                f"{where}: the upgrade from version {version} must be a plain function"
            )


def _check_limits(job_type: JobType) -> None:
    names = [limit.name for limit in job_type.limits]
    if len(set(names)) < len(names):
        raise RegistryError(f"job type {job_type.name!r} names a limit twice")
    for limit in job_type.limits:
        where = f"the limit {limit.name!r} of job type {job_type.name!r}"
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,63}", limit.name):
            raise RegistryError(f"{where}: use lower-case letters, digits, _ and - for its name")
        numbers = (limit.concurrency, limit.per_minute, limit.tokens_per_minute)
        if all(each is None for each in numbers):
            raise RegistryError(f"{where} limits nothing: give it a number")
        if any(each is not None and each < 1 for each in numbers):
            raise RegistryError(f"{where}: its numbers must be 1 or more")
        for field in (limit.key, limit.tokens):
            if isinstance(field, str) and field not in job_type.payload_model.model_fields:
                raise RegistryError(f"{where}: the payload has no field {field!r}")
