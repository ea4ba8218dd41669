"""Generations of an index: the one that is searched, and the one that is being built beside it.

Each generation is a table, all of whose vectors one embedder has made. Which is which says the
catalogue, a list of numbered states that is kept with the tables: a state is never changed, and
of all who want to write the next one exactly one does. So a swap is one step, for all processes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from switchyard.services.pipeline.index.chunk_index import (
    ChunkIndex,
    IndexMismatch,
    IndexUnavailable,
)

FIRST_TABLE = "chunks"
"""The table of an index that was never built anew."""
_MAX_TRIES = 20


@dataclass(frozen=True, slots=True)
class Generation:
    """A table and whose vectors it has."""

    table: str
    embedder: str
    """Name of the embedder (`Embedder.name`)."""
    dimensions: int


@dataclass(frozen=True, slots=True)
class Retired:
    """A generation that another has replaced. Readers that began before may still use it."""

    generation: Generation
    since: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Generations:
    """A state of the catalogue."""

    active: Generation
    """The one that is searched."""
    building: Generation | None = None
    retired: tuple[Retired, ...] = ()
    number: int = 0
    """Of the state; 0 for an index that was never built anew."""

    @property
    def write_targets(self) -> tuple[Generation, ...]:
        """Generations to write new chunks to, in this order: active, then building."""
        return (self.active,) if self.building is None else (self.active, self.building)


class IndexStore(Protocol):
    """Where an index is kept. All methods raise IndexUnavailable, and IndexMismatch where what is
    there can't be read."""

    location: str
    """Its address, without credentials."""

    async def load(self) -> None:
        """Load the library that reads it: once in a process that takes a second, for which no
        server is to blame, and in which the event loop goes on."""
        ...

    async def generations(self, first: Generation) -> Generations:
        """How it stands now; `first` is the generation of an index that is not there yet."""
        ...

    async def put_state(self, state: Generations) -> bool:
        """Write the state of that number; False where there is one of this number."""
        ...

    def table(self, generation: Generation) -> AbstractAsyncContextManager[ChunkIndex]:
        """Its table; made if need be. Raises IndexMismatch where that is another embedder's."""
        ...

    def compacting(self, generation: Generation) -> AbstractAsyncContextManager[bool]:
        """Around compacting its table: whether no other process is at it."""
        ...

    async def text_index_version(self, generation: Generation) -> int | None:
        """How the words of its table are kept (`words.TOKENIZER_VERSION`), 0 for any way before
        there were such numbers; None where there is no table."""
        ...

    async def drop(self, generation: Generation) -> None:
        """Remove its table; it does not matter whether there is one."""
        ...

    async def put_progress(self, generation: Generation, text: str) -> None:
        """Store how far the building of a generation is."""
        ...

    async def progress(self, generation: Generation) -> str | None:
        """Return what `put_progress` has stored; None where there is nothing."""
        ...

    async def probe(self, generation: Generation) -> str | None:
        """Return what `put_probe` has stored; None where there is nothing."""
        ...

    async def put_probe(self, generation: Generation, text: str) -> str:
        """Keep by which vector its vectors are known, unless that is kept; gives what is kept."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


async def change_generations(
    home: IndexStore, first: Generation, step: Callable[[Generations], Generations | None]
) -> Generations:
    """Bring the catalogue one step on, from whatever state it is in; `step` gives None where there
    is nothing to do, and may be asked several times. Gives the state that is there then."""
    for _ in range(_MAX_TRIES):
        now = await home.generations(first)
        wanted = step(now)
        if wanted is None:
            return now
        wanted = replace(wanted, number=now.number + 1)
        if await home.put_state(wanted):
            return wanted
    raise IndexUnavailable(f"the catalogue of the index at {home.location} changes all the time")


def encoded(state: Generations) -> bytes:
    """As it is kept."""
    return json.dumps(asdict(state)).encode()


def decoded(text: bytes | str) -> Generations:
    """A state as it was kept. Raises IndexMismatch for anything else."""
    try:
        told = json.loads(text)
        building = told["building"]
        return Generations(
            active=_generation(told["active"]),
            building=None if building is None else _generation(building),
            retired=tuple(
                Retired(_generation(each["generation"]), float(each["since"]))
                for each in told["retired"]
            ),
            number=int(told["number"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise IndexMismatch("the catalogue of the index can't be read: restore it") from error


def _generation(told: dict[str, object]) -> Generation:
    table, embedder, dimensions = told["table"], told["embedder"], told["dimensions"]
    if not (isinstance(table, str) and isinstance(embedder, str) and isinstance(dimensions, int)):
        raise TypeError("not a generation")
    if not table.isidentifier() or not table.isascii() or not 1 <= dimensions <= 65_536:
        raise ValueError("not a generation")
    return Generation(table, embedder, dimensions)
