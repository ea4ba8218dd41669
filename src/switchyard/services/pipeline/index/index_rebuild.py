"""Build an index for another embedder beside the one that is searched, and swap them in one step.

Meanwhile, new chunks are written to both generations (`OpenIndex.write`), to the old one first. A
document that was there before is copied from the old generation's texts, and then compared: if it
was written meanwhile, the two differ, and it is copied again. So once all documents were copied,
the new generation has what the old one has. A second round, which finds hardly anything to do,
copies documents whose writer died between its two writes.

After a crash, another process goes on after the last document that was recorded. A process that was
only frozen writes nothing after the swap, as it checks before each write whether it may still
write.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from switchyard.services.common.errors import PermanentError
from switchyard.services.pipeline.index.chunk_index import ChunkIndex, IndexUnavailable
from switchyard.services.pipeline.index.compaction import compact_table
from switchyard.services.pipeline.index.embedder import Embedder
from switchyard.services.pipeline.index.generations import (
    FIRST_TABLE,
    Generation,
    Generations,
    RetiredGeneration,
    change_generations,
)
from switchyard.services.pipeline.index.open_index import OpenIndex, generation_of

BATCH_SIZE = 256
"""Chunks that are copied at once."""
MAX_ROUNDS = 2
"""Rounds over all documents; the second only repairs (see above)."""
PROGRESS_INTERVAL = 20
"""Documents after which the progress is stored."""
RETIRED_RETENTION = 3600.0
"""Seconds for which a replaced generation is kept: jobs and searches may still use it."""
_MAX_TRIES = 10
"""Attempts to copy a document that changes meanwhile."""


class AnotherRebuild(PermanentError):
    """The index is being rebuilt for another embedder."""


class _NotBuilding(Exception):
    """The generation is no longer being built, so this process must not change it."""


_CheckMayWrite = Callable[[], Awaitable[None]]
"""Awaited before each write to the generation that is being built. Raises _NotBuilding."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rebuild has come."""

    round: int = 1
    after: str = ""
    """The last document that was copied in this round; empty before the first."""

    @classmethod
    def from_note(cls, text: str | None) -> Progress:
        """Read what `str` returned; for None, return the start."""
        number, _, after = (text or "").partition(" ")
        return cls(int(number), after) if number.isdigit() else cls()

    def __str__(self) -> str:
        return f"{self.round} {self.after}"


async def begin_rebuild(
    index: OpenIndex, embedder: Embedder, *, force: bool = False
) -> Generations:
    """Begin to build a generation of this embedder, unless one is being built, or, without `force`,
    is searched already. Returns the state after that. Raises AnotherRebuild if a generation of
    another embedder is being built, IndexMismatch, IndexUnavailable."""

    def next_state(current: Generations) -> Generations | None:
        if current.building is not None:
            if _is_made_by(current.building, embedder):
                return None
            raise AnotherRebuild(
                f"the index is being rebuilt for {current.building.embedder!r}: wait for that "
                "(`jobctl index show`), or give it up with `jobctl index abandon`"
            )
        if _is_made_by(current.active, embedder) and not force:
            return None
        return replace(
            current, building=generation_of(embedder, f"{FIRST_TABLE}_{current.number + 1}")
        )

    return await change_generations(index.store, index.configured, next_state)


async def continue_rebuild(
    index: OpenIndex, building: Generation, is_over: Callable[[], bool]
) -> bool:
    """Copy all documents and swap. Returns False if `is_over` says that time is up before that is
    done: the next call goes on. Returns True also if the rebuild was abandoned.

    Raises IndexMismatch, IndexUnavailable, and what the embedder raises.
    """

    async def may_write() -> None:
        if (await index.generations()).building != building:
            raise _NotBuilding

    try:
        return await _copy_and_swap(index, building, is_over, may_write)
    except _NotBuilding:
        return True


async def _copy_and_swap(
    index: OpenIndex, building: Generation, is_over: Callable[[], bool], may_write: _CheckMayWrite
) -> bool:
    store = index.store
    embedder = index.embedder_of(building)
    state = await index.generations()
    async with store.table(state.active) as source, store.table(building) as target:
        for progress in _rounds_from(Progress.from_note(await store.progress(building))):
            for number, document_id in enumerate(await source.document_ids()):
                if document_id <= progress.after:
                    continue
                if number % PROGRESS_INTERVAL == 0:
                    await may_write()
                if is_over():
                    return False
                await _copy_document(source, target, embedder, document_id, may_write)
                if number % PROGRESS_INTERVAL == PROGRESS_INTERVAL - 1:
                    await store.put_progress(building, str(replace(progress, after=document_id)))
            await store.put_progress(building, str(Progress(progress.round + 1)))
        # The target is read first: a new document is written to the source first, and so never
        # looks like one that the source lacks.
        obsolete_ids = set(await target.document_ids()) - set(await source.document_ids())
        for document_id in sorted(obsolete_ids):
            await may_write()
            await target.delete_document(document_id)
    await change_generations(
        store, index.configured, lambda current: _swap(current, building, index.clock())
    )
    return True


async def abandon_rebuild(index: OpenIndex) -> Generation | None:
    """Give up the generation that is being built. Returns that generation; None if there is
    none."""
    abandoned: list[Generation] = []

    def next_state(current: Generations) -> Generations | None:
        abandoned[:] = [current.building] if current.building is not None else []
        if current.building is None:
            return None
        retired = (*current.retired, RetiredGeneration(current.building, index.clock()))
        return replace(current, building=None, retired=retired)

    await change_generations(index.store, index.configured, next_state)
    return abandoned[0] if abandoned else None


async def compact_index(index: OpenIndex) -> list[Generation]:
    """Compact all generations in use, and remove those that were replaced more than
    RETIRED_RETENTION seconds ago. Return the removed ones. Raises IndexUnavailable."""
    state = await index.generations()
    for generation in state.write_targets:
        await compact_table(index.store, generation)
    expired = [each for each in state.retired if each.since < index.clock() - RETIRED_RETENTION]
    for each in expired:
        await index.store.drop(each.generation)

    def next_state(current: Generations) -> Generations | None:
        retired = tuple(each for each in current.retired if each not in expired)
        return None if retired == current.retired else replace(current, retired=retired)

    if expired:
        await change_generations(index.store, index.configured, next_state)
    return [each.generation for each in expired]


def _rounds_from(progress: Progress) -> list[Progress]:
    later = [Progress(number) for number in range(progress.round + 1, MAX_ROUNDS + 1)]
    return [progress, *later] if progress.round <= MAX_ROUNDS else []


async def _copy_document(
    source: ChunkIndex,
    target: ChunkIndex,
    embedder: Embedder,
    document_id: str,
    may_write: _CheckMayWrite,
) -> None:
    """Make the document's chunks in the target equal to those in the source."""
    for _ in range(_MAX_TRIES):
        if not await _copy_differences(source, target, embedder, document_id, may_write):
            return
    raise IndexUnavailable(f"document {document_id} changes again and again while it is copied")


async def _copy_differences(
    source: ChunkIndex,
    target: ChunkIndex,
    embedder: Embedder,
    document_id: str,
    may_write: _CheckMayWrite,
) -> bool:
    """Copy the document's chunks that differ, and delete those that the source lacks. Returns
    whether there were any."""
    start, has_changed = 0, False
    while True:
        texts = await source.texts_of(document_id, start, BATCH_SIZE)
        copied = {
            each.chunk.id: each for each in await target.texts_of(document_id, start, BATCH_SIZE)
        }
        missing = [each for each in texts if copied.get(each.chunk.id) != each]
        for title in dict.fromkeys(each.title for each in missing):
            chunks = [each.chunk for each in missing if each.title == title]
            vectors = await embedder.embed([chunk.text for chunk in chunks])
            await may_write()
            await target.put(title, chunks, vectors)
            has_changed = True
        start += len(texts)
        if len(texts) < BATCH_SIZE:
            break
    if await target.count(document_id) > start:
        await may_write()
        await target.drop_from(document_id, start)
        has_changed = True
    return has_changed


def _swap(current: Generations, building: Generation, now: float) -> Generations | None:
    if current.building != building:
        return None  # another process has swapped them, or abandoned the rebuild
    retired = (*current.retired, RetiredGeneration(current.active, now))
    return replace(current, active=building, building=None, retired=retired)


def _is_made_by(generation: Generation, embedder: Embedder) -> bool:
    return (generation.embedder, generation.dimensions) == (embedder.name, embedder.dimensions)
