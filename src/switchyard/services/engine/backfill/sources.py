"""Sources: where the items of a backfill come from.

A source is a small class that yields items, each with a cursor from which another process can
continue. Sources in the modules of JOBS_MODULES are found like the built-in ones.
"""

from __future__ import annotations

import importlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ValidationError

from switchyard.broker.message import describe
from switchyard.broker.wording import suggest
from switchyard.services.common.errors import (
    InvalidInput,
    PermanentFailure,
    TemporarilyUnavailable,
)
from switchyard.services.engine.jobs.local_fields import refusals
from switchyard.services.engine.wings import source_modules

if TYPE_CHECKING:
    from switchyard.services.common.files.storage import Storage
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.ledger import Ledger

SOURCE_TIMEOUT = 60.0
"""Seconds to wait for a turn to send a request to a source's server."""

Cursor = Mapping[str, Any]
"""Position in a source, as a JSON object whose form only the source knows."""


class InvalidBackfill(InvalidInput):
    """The backfill can't be started as it was asked for; the text says what to change."""


class SourceUnreachable(TemporarilyUnavailable):
    """The source does not answer at present: the backfill retries later."""


class SourceFailed(PermanentFailure):
    """The source can't be read any further, and a retry would not help; the text says why."""


@dataclass(frozen=True, slots=True)
class Item:
    """Item of a source, from which one job is made."""

    key: str
    """Key of the item within the source, the same on each reading: its job's id is derived from
    it."""
    values: Mapping[str, Any]
    """Values for the payload's template; the payload itself where there is no template."""
    cursor: Cursor
    """Cursor from which to continue after this item."""
    source: str | None = None
    """Source to record for its job, where that is not the backfill's."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """A piece of the source that can't be made into a job."""

    where: str
    """Position for people: `line 17`."""
    why: str
    cursor: Cursor


class Source(ABC):
    """Base of all sources.

    class Numbers(Source):
        name = "numbers"
        class Options(BaseModel):
            to: int
        async def items(self, cursor):
            for n in range(cursor["n"] if cursor else 0, self.options.to):
                yield Item(str(n), {"n": n}, cursor={"n": n + 1})
    """

    name: ClassVar[str]
    """Name in `jobctl backfill start`."""
    Options: ClassVar[type[BaseModel]]
    """Model of its options."""
    job_type: ClassVar[str | None] = None
    """Job type for its items if the backfill names none."""
    vouches: ClassVar[bool] = False
    """Whether its items come from a server that the settings name, and not from the person who
    starts a backfill: then they may fill local-only fields of the same name, also in a backfill
    that was started over HTTP."""

    shows_records: ClassVar[bool] = False
    """Whether its items are records of this system: then a start over HTTP, which shows some of
    them, also needs the scope `read`."""

    def __init__(self, options: Any, context: SourceContext) -> None:
        self.options = options
        """An instance of `Options`."""
        self.context = context

    @abstractmethod
    def items(self, cursor: Cursor | None) -> AsyncIterator[Item | Unusable]:
        """Yield the items after that cursor, or all for None. Every reading must yield the same
        items in the same order.

        Raises SourceUnreachable, SourceFailed.
        """

    async def total(self) -> int | None:
        """Return how many items there are in all; None where that is not known. Raises
        SourceUnreachable, SourceFailed."""
        return None

    @property
    def title(self) -> str:
        """Title for people: name and options."""
        options = self.options.model_dump(mode="json", exclude_none=True)
        return " ".join([self.name, *(f"{key}={value}" for key, value in options.items())])


@dataclass(frozen=True, slots=True)
class SourceContext:
    """Context for sources."""

    settings: Settings
    ledger: Ledger
    storage: Storage
    started_at: float
    """When the backfill was started, in seconds since the epoch: later records are not items of
    it."""
    max_wait: float = SOURCE_TIMEOUT
    """Seconds to wait for a turn to send a request, where the source limits their rate."""


class Sources:
    """The sources that this process knows."""

    def __init__(self, sources: Iterable[type[Source]]) -> None:
        self._sources: dict[str, type[Source]] = {}
        for source in sources:
            missing = [name for name in ("name", "Options") if not hasattr(source, name)]
            if missing:
                raise InvalidBackfill(
                    f"source {source.__module__}.{source.__qualname__} has no {missing[0]}"
                )
            registered = self._sources.setdefault(source.name, source)
            if registered is not source:
                raise InvalidBackfill(
                    f"source {source.name!r} is declared twice: in {registered.__module__} and in "
                    f"{source.__module__}"
                )

    @classmethod
    def load(cls, modules: Iterable[str] = ()) -> Sources:
        """Return the built-in sources and those of these modules. Raises InvalidBackfill."""
        sources: dict[type[Source], None] = {}
        for name in dict.fromkeys((*source_modules(), *modules)):
            try:
                module = importlib.import_module(name)
            except ImportError as error:
                raise InvalidBackfill(f"can't import the module {name!r}: {error}") from error
            for _, each in inspect.getmembers(module, inspect.isclass):
                if (
                    issubclass(each, Source)
                    and not inspect.isabstract(each)
                    and each.__module__ == module.__name__
                ):
                    sources[each] = None
        return cls(sources)

    def __iter__(self) -> Iterator[type[Source]]:
        return iter(sorted(self._sources.values(), key=lambda source: source.name))

    def get(self, name: str) -> type[Source]:
        """Return the source of that name. Raises InvalidBackfill, which suggests similar names."""
        try:
            return self._sources[name]
        except KeyError:
            raise InvalidBackfill(f"no source {name!r}; {suggest(name, self._sources)}") from None

    def open(
        self, name: str, options: Mapping[str, Any], context: SourceContext, *, remote: bool = True
    ) -> Source:
        """Open the source of that name with these options. With `remote`, the options come from
        outside, and LocalOnly ones are refused. Raises InvalidBackfill."""
        source = self.get(name)
        try:
            parsed = source.Options.model_validate(options)
        except ValidationError as error:
            raise InvalidBackfill(f"source {name}: {describe(error)}") from error
        if remote and (refused := refusals(parsed, options, {})):
            raise InvalidBackfill(f"source {name}: {'; '.join(each.message for each in refused)}")
        return source(parsed, context)
