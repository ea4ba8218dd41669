"""Generations of an index: the one that is searched, and the one that is being built beside it.

Each generation is a table whose vectors one embedder has made. The index's *catalogue* says which
is which: a list of numbered states, kept with the tables. A state is never changed, and if several
processes write the next one, exactly one succeeds. So a swap is one step for all processes.
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
"""The table of an index that was never rebuilt."""
_MAX_TRIES = 20
"""Attempts to write the next state before it counts as unavailable."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A table, and the embedder that made its vectors."""

    table: str
    embedder: str
    """Name of the embedder (`Embedder.name`)."""
    dimensions: int


@dataclass(frozen=True, slots=True)
class RetiredGeneration:
    """A generation that another has replaced. Readers that began before the replacement may still
    use it."""

    generation: Generation
    since: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Generations:
    """A state of the catalogue."""

    active: Generation
    """The generation that is searched."""
    building: Generation | None = None
    retired: tuple[RetiredGeneration, ...] = ()
    number: int = 0
    """Number of the state; 0 for an index that was never rebuilt."""

    @property
    def write_targets(self) -> tuple[Generation, ...]:
        """Generations to write new chunks to, in this order: active, then building."""
        return (self.active,) if self.building is None else (self.active, self.building)


class IndexStore(Protocol):
    """A place that keeps an index. All methods raise IndexUnavailable, and IndexMismatch where what
    is stored can't be read."""

    location: str
    """Its address, without credentials."""

    async def load(self) -> None:
        """Import the library that reads the index. It takes about a second once in a process;
        callers await it first, so that it does not count against a server's time limit."""
        ...

    async def generations(self, default: Generation) -> Generations:
        """Return the newest state of the catalogue. An index that does not exist yet has the
        generation `default` alone."""
        ...

    async def put_state(self, state: Generations) -> bool:
        """Write a state. Returns False where a state of the same number exists."""
        ...

    def table(self, generation: Generation) -> AbstractAsyncContextManager[ChunkIndex]:
        """Open the table of a generation, and create it if need be. Raises IndexMismatch where the
        table is another embedder's."""
        ...

    def compacting(self, generation: Generation) -> AbstractAsyncContextManager[bool]:
        """Claim the compaction of a generation's table. Yields False where another process has
        claimed it."""
        ...

    async def text_index_version(self, generation: Generation) -> int | None:
        """Return the TOKENIZER_VERSION of the words in a generation's table: 0 if the table is from
        before there were versions, None where there is no table."""
        ...

    async def drop(self, generation: Generation) -> None:
        """Remove the table of a generation, if there is one."""
        ...

    async def put_progress(self, generation: Generation, text: str) -> None:
        """Store how far the build of a generation is."""
        ...

    async def progress(self, generation: Generation) -> str | None:
        """Return what `put_progress` has stored; None where there is nothing."""
        ...

    async def probe(self, generation: Generation) -> str | None:
        """Return what `put_probe` has stored; None where there is nothing."""
        ...

    async def put_probe(self, generation: Generation, text: str) -> str:
        """Store the probe vector of a generation, unless there is one. Returns the one that is
        stored."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


async def change_generations(
    store: IndexStore, default: Generation, next_state: Callable[[Generations], Generations | None]
) -> Generations:
    """Write the next state of the catalogue, and return it. `next_state` computes the state after
    the given one, or returns None if there is nothing to do. It is called again if another process
    wrote a state first. Raises IndexUnavailable if that happens again and again."""
    for _ in range(_MAX_TRIES):
        current = await store.generations(default)
        changed = next_state(current)
        if changed is None:
            return current
        changed = replace(changed, number=current.number + 1)
        if await store.put_state(changed):
            return changed
    raise IndexUnavailable(f"the catalogue of the index at {store.location} changes all the time")


def encode_state(state: Generations) -> bytes:
    """Encode a state as JSON."""
    return json.dumps(asdict(state)).encode()


def decode_state(text: bytes | str) -> Generations:
    """Decode what `encode_state` returned. Raises IndexMismatch for anything else."""
    try:
        state = json.loads(text)
        building = state["building"]
        return Generations(
            active=_generation(state["active"]),
            building=None if building is None else _generation(building),
            retired=tuple(
                RetiredGeneration(_generation(each["generation"]), float(each["since"]))
                for each in state["retired"]
            ),
            number=int(state["number"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise IndexMismatch("the catalogue of the index can't be read: restore it") from error


def _generation(values: dict[str, object]) -> Generation:
    table, embedder, dimensions = values["table"], values["embedder"], values["dimensions"]
    if not (isinstance(table, str) and isinstance(embedder, str) and isinstance(dimensions, int)):
        raise TypeError("not a generation")
    if not table.isidentifier() or not table.isascii() or not 1 <= dimensions <= 65_536:
        raise ValueError("not a generation")
    return Generation(table, embedder, dimensions)
