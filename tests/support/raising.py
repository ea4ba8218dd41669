"""Exceptions of every class, and job types that raise them in each kind of isolation.

Processes of jobs import this module: it imports a library only when its exceptions are asked for.
"""

import asyncio
import builtins
import importlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, field_validator

from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.limits import Limit
from switchyard.services.engine.jobs.outcomes import Done, Job, Next, Outcome, Retry
from switchyard.services.engine.jobs.registry import job

LIBRARIES = (
    "aio_pika.exceptions",
    "aiormq.exceptions",
    "anyio",
    "asyncpg.exceptions",
    "concurrent.futures",
    "concurrent.futures.process",
    "httpx",
    "huggingface_hub.errors",
    "json",
    "obstore.exceptions",
    "openai",
    "pickle",
    "pydantic",
    "pydantic_core",
    "pymupdf",
    "sqlalchemy.exc",
    "switchyard.broker.errors",
    "switchyard.services.engine.jobs.outcomes",
    "switchyard.services.engine.records.errors",
)


# --- hostile exceptions --------------------------------------------------------------------------


class Unsayable(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt("its own text")

    __repr__ = __str__


class Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise ValueError("it stays here")


class NotMadeAgain(Exception):
    """It can be pickled, but not unpickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)


class Pretender(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("it does not say what it is")


class WithNonsense(Exception):
    after = counts = ages = "soon"

    @property
    def response(self) -> Any:
        raise SystemExit("no answer")


class NamelessType(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("it has no name")


class Nameless(Exception, metaclass=NamelessType):
    pass


PanicException = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
"""The class that libraries in Rust raise: no subclass of Exception, and not importable."""


def _local() -> BaseException:
    class Local(Exception):
        pass

    return Local("of a class within a function")


def _cycle() -> BaseException:
    first, second = RuntimeError("first"), RuntimeError("second")
    first.__cause__, second.__cause__ = second, first
    return first


HOSTILE: Mapping[str, Callable[[], BaseException]] = {
    "a lone surrogate": lambda: ValueError("bad \ud800"),
    "nul": lambda: ValueError("a\x00b"),
    "control characters": lambda: ValueError("\x1b[2J\u202e\r\n"),
    "huge": lambda: ValueError("😀" * 300_000),
    "huge name": lambda: type("N" * 100_000, (Exception,), {})("x"),
    "big int": lambda: ValueError(10**5_000, float("nan")),
    "no text": lambda: ValueError(),
    "bytes": lambda: ValueError(b"\xff\xfe"),
    "unsayable": Unsayable,
    "unpicklable": lambda: Unpicklable("it stays here"),
    "not made again": lambda: NotMadeAgain("one", "two"),
    "pretender": Pretender,
    "nonsense": WithNonsense,
    "nameless": Nameless,
    "panic": lambda: PanicException("called `Option::unwrap()` on a `None` value"),
    "local": _local,
    "cycle": _cycle,
    "group": lambda: ExceptionGroup("some", [ValueError("\ud800"), Unsayable()]),
    "base group": lambda: BaseExceptionGroup("some", [KeyboardInterrupt(), PanicException()]),
    "cancelled": lambda: asyncio.CancelledError("by itself"),
}


def _make_exception(kind: type[BaseException]) -> BaseException:
    """Return an exception of that class, by its constructor or at least as an empty shell."""
    for arguments in ((), ("it failed",), ("it failed", [ValueError("one")])):
        try:
            return kind(*arguments)
        except Exception:
            continue
    return kind.__new__(kind, "it failed")


def _exceptions_in(name: str) -> Iterator[tuple[str, type[BaseException]]]:
    module = importlib.import_module(name)
    for each in list(vars(module).values()):  # a list, because lazy attributes change the module
        if isinstance(each, type) and issubclass(each, BaseException):
            yield f"{each.__module__}.{each.__qualname__}", each


@cache
def classes() -> Mapping[str, type[BaseException]]:
    """Return every exception class of the language and of the libraries in use, by name."""
    class_by_name = dict(_exceptions_in("builtins"))
    for library in LIBRARIES:
        class_by_name |= _exceptions_in(library)
    return class_by_name


def exception(name: str) -> BaseException:
    """Return the exception of that name: one of HOSTILE, of builtins, or of `classes`."""
    if name in HOSTILE:
        return HOSTILE[name]()
    kind = getattr(builtins, name, None) or classes()[name]
    return _make_exception(kind)


def fail(name: str) -> None:
    raise exception(name)


# --- job types -----------------------------------------------------------------------------------


class ExceptionName(BaseModel):
    name: str


class RaisingPayload(ExceptionName):
    @field_validator("name")
    @classmethod
    def refuse(cls, name: str) -> str:
        raise exception(name)


class HostileMapping(Mapping[str, Any]):
    """A payload that raises when it is read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _fail(self, *_: Any) -> Any:
        raise exception(self._name)

    __iter__ = __getitem__ = __len__ = _fail


class HostileText:
    """A reason that raises when it is read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __str__(self) -> str:
        raise exception(self._name)


@job("raise_here", worker="llm", lanes=("hot",), timeout=60, max_attempts=2)
async def raise_here(payload: ExceptionName, ctx: JobContext) -> Outcome:
    raise exception(payload.name)


@job("raise_in_thread", worker="llm", lanes=("hot",), timeout=60, max_attempts=2)
async def raise_in_thread(payload: ExceptionName, ctx: JobContext) -> Outcome:
    await ctx.compute(fail, payload.name, characters=1)
    return Done()


@job("raise_in_part", worker="llm", lanes=("hot",), timeout=60, max_attempts=2)
async def raise_in_part(payload: ExceptionName, ctx: JobContext) -> Outcome:
    await ctx.in_process(fail, payload.name, timeout=60, memory_limit_mb=4096)
    return Done()


@job("raise_alone", worker="llm", lanes=("hot",), timeout=60, max_attempts=2, isolation="process")
def raise_alone(payload: ExceptionName, ctx: JobContext) -> Outcome:
    raise exception(payload.name)


@job("raise_in_task", worker="llm", lanes=("hot",), timeout=60, max_attempts=2)
async def raise_in_task(payload: ExceptionName, ctx: JobContext) -> Outcome:
    async def part() -> None:
        raise exception(payload.name)

    async with asyncio.TaskGroup() as group:
        group.create_task(part())
    return Done()


@job("cancel_itself", worker="llm", lanes=("hot",), timeout=60, max_attempts=2)
async def cancel_itself(payload: ExceptionName, ctx: JobContext) -> Outcome:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)
    return Done()


@job("refuse_payload", worker="llm", lanes=("hot",), timeout=60, max_attempts=2)
async def refuse_payload(payload: RaisingPayload, ctx: JobContext) -> Outcome:
    return Done()


def _raising_key(payload: Any) -> str:
    raise exception(payload.name)


@job(
    "raise_in_limit",
    worker="llm",
    lanes=("hot",),
    max_attempts=2,
    limits=[Limit("raising", concurrency=1, key=_raising_key)],
)
async def raise_in_limit(payload: ExceptionName, ctx: JobContext) -> Outcome:
    return Done()


@job("answer_badly", worker="llm", lanes=("hot",), timeout=60, max_attempts=2)
async def answer_badly(payload: ExceptionName, ctx: JobContext) -> Outcome:
    return Retry(HostileText(payload.name))  # type: ignore[arg-type]


@job("follow_badly", worker="llm", lanes=("hot",), timeout=60, max_attempts=2)
async def follow_badly(payload: ExceptionName, ctx: JobContext) -> Outcome:
    return Next([Job("raise_here", HostileMapping(payload.name))])


IN_OWN_PROCESS = ("raise_in_part", "raise_alone")
"""Job types whose work is done in a process of its own."""
ISOLATIONS = ("raise_here", "raise_in_thread", *IN_OWN_PROCESS)
STEPS = ("refuse_payload", "raise_in_limit", "answer_badly", "follow_badly")
