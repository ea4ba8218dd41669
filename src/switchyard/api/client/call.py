"""Describe one call of the API as a value: what is sent, and how the answer is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from errno import ESPIPE
from pathlib import Path
from typing import IO, Any, Generic, Literal, ParamSpec, Protocol, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, TypeAdapter

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
P = ParamSpec("P")

_JSON = TypeAdapter(dict[str, Any], config=ConfigDict(defer_build=True))
"""Made when it is first used, as pydantic then looks for plugins in all installed packages."""
UPLOAD_TIMEOUT = 600.0
"""Seconds to wait for the answer to an upload: without a broker, it comes after all stages."""

Upload = str | Path | IO[bytes]
"""A path, or a file that is open for reading in binary; neither is read into memory."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request, and how its response is read."""

    method: str
    path: str
    read: Callable[[bytes], T]
    """Makes the result from an answer's body. Raises pydantic's ValidationError."""
    query: Mapping[str, Any] = field(default_factory=dict)
    """Values that are None are not sent."""
    json: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)
    file: Upload | None = None
    filename: str | None = None
    repeatable: bool = False
    """Whether sending the call twice has the same effect as once, so that the client may retry
    it."""
    read_timeout: float | None = None
    """Seconds to wait for the answer; None for the client's timeout."""
    answer_statuses: frozenset[int] = frozenset()
    """Statuses besides 2xx whose body is an answer, not a problem."""

    def can_repeat(self, *, refused: bool) -> bool:
        """Return whether the call may be retried, after it was `refused` or got no answer. A file
        is sent again only if it was refused, as it may otherwise have been stored; and it must be
        at a path, or be seekable.
        """
        if self.file is None or not self.repeatable:
            return self.repeatable
        return refused and (isinstance(self.file, str | Path) or self.file.seekable())

    def opened(self) -> AbstractContextManager[IO[bytes] | None]:
        """Open the file within the context; a file object that was passed stays open. Raises
        OSError, also for a pipe, whose size is unknown: the size is sent first."""
        if not isinstance(self.file, str | Path):
            return nullcontext(self.file)
        path = Path(self.file)
        if path.is_fifo():
            raise OSError(ESPIPE, "a pipe can't be sent: save it to a file first", str(path))
        return path.open("rb")

    def name(self) -> str:
        """Return the file's name, for people to read."""
        if self.filename is not None:
            return self.filename
        named = self.file if isinstance(self.file, str | Path) else getattr(self.file, "name", "")
        return Path(named).name if isinstance(named, str | Path) else ""


@dataclass(frozen=True, slots=True)
class Operation(Generic[P, T]):
    """An operation of the API: its id, and the function that makes a Call of its arguments."""

    id: str
    call: Callable[P, Call[T]]


class Sender(Protocol):
    """A client that sends a call and waits for its answer."""

    is_async: Literal[False]

    def send(self, call: Call[T], /) -> T:
        """Send the call and return its answer. Raises ApiError."""
        ...


class AsyncSender(Protocol):
    """A client whose `send` is awaited."""

    is_async: Literal[True]

    async def send(self, call: Call[T], /) -> T:
        """Send the call and return its answer. Raises ApiError."""
        ...


def operation(name: str) -> Callable[[Callable[P, Call[T]]], Operation[P, T]]:
    """Mark a function as the description of that operation."""

    def mark(call: Callable[P, Call[T]]) -> Operation[P, T]:
        return Operation(name, call)

    return mark


def get(path: str, answer: type[M], **query: Any) -> Call[M]:
    """Make a GET call whose answer is of that model; query values that are None are left out."""
    return Call("GET", path, answer.model_validate_json, query, repeatable=True)


def modify(path: str, answer: type[M], json: Any = None, *, method: str = "POST") -> Call[M]:
    """Make a repeatable call that changes something; its answer is of that model."""
    return Call(method, path, answer.model_validate_json, json=json, repeatable=True)


def get_json(path: str, **query: Any) -> Call[dict[str, Any]]:
    """Make a GET call whose answer is any JSON object."""
    return Call("GET", path, _JSON.validate_json, query, repeatable=True)


def in_path(name: str) -> str:
    """Quote a name as one segment of a path: `..` would lead to another one."""
    quoted = quote(name, safe="")
    return quoted if quoted.strip(".") else quoted.replace(".", "%2E")


def without_none(values: Mapping[str, T | None]) -> dict[str, T]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}
