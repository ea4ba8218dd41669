"""Check, for the doctor, that the index answers, and holds the vectors that the settings name."""

from __future__ import annotations

import asyncio
from pathlib import Path

from switchyard.services.common.errors import PermanentError, RetryableError
from switchyard.services.common.files.storage import directory_of
from switchyard.services.common.settings import Settings
from switchyard.services.engine.monitoring.check import Diagnostic, Finding, failure, ok, warning
from switchyard.services.pipeline.index.chunk_index import IndexUnavailable, recovery_hint
from switchyard.services.pipeline.index.embedder import is_offline
from switchyard.services.pipeline.index.embedder_probe import (
    MIN_COSINE,
    REMEDY,
    describe_mismatch,
    probe_likeness,
)
from switchyard.services.pipeline.index.generations import Generation, Generations
from switchyard.services.pipeline.index.open_index import OpenIndex, open_index
from switchyard.services.pipeline.index.word_index import TOKENIZER_VERSION

TIMEOUT = 8.0
"""Seconds that a database or object store has to describe the index (failed requests to an object
store are repeated meanwhile), and then the embedding server for one vector."""
LOCAL_TIMEOUT = 60.0
"""Seconds for an index in a directory of this host, which may be slow when the host is busy."""


async def check_index(settings: Settings) -> list[Diagnostic]:
    """Check that the index answers, was made by the settings' embedder, and holds vectors that this
    embedder still makes. Creates nothing."""
    directory = directory_of(settings.vectors_url)
    time_limit = TIMEOUT if directory is None else LOCAL_TIMEOUT
    try:
        if directory is not None and not _has_tables(directory):
            return [ok("index", "nothing has been indexed yet")]
        async with open_index(settings) as opened:
            await opened.store.load()
            async with asyncio.timeout(time_limit):
                state, configured = await opened.generations(), opened.configured
                tokenizer_version = await opened.store.text_index_version(state.active)
            checks = [_check_embedder(state, configured), *_check_words(tokenizer_version, state)]
            return checks + await _check_vectors(opened, state.active)
    except (IndexUnavailable, OSError) as error:  # TimeoutError among them
        detail = str(error) or f"it has not answered within {time_limit:g} s"
        remedy = (
            "see JOBS_INDEX_URL: is it right, does the database or object store run?"
            if directory is None
            else f"is the disk of {directory} missing, or this host far too busy?"
        )
        return [failure("index", Finding.INDEX_AWAY, detail, remedy)]
    except PermanentError as error:
        remedy = "correct JOBS_INDEX_URL, or JOBS_EMBED_…"
        return [failure("index", Finding.INDEX_UNUSABLE, str(error), remedy)]


def _has_tables(directory: Path) -> bool:
    """Return whether a directory has an index; its marker file alone does not count. So LanceDB,
    which takes 1.5 s of processor time to load, is not loaded if there is no index."""
    return directory.is_dir() and any(each.is_dir() for each in directory.iterdir())


def _check_embedder(state: Generations, configured: Generation) -> Diagnostic:
    active = state.active
    if (active.embedder, active.dimensions) == (configured.embedder, configured.dimensions):
        return ok("index", f"it holds vectors of {active.embedder!r}, as the settings name")
    if any(each.embedder == configured.embedder for each in state.write_targets):
        return ok("index", f"it is being rebuilt for {configured.embedder!r}")
    detail = (
        f"it holds vectors of {active.embedder!r}, and is searched with them; the settings name "
        f"{configured.embedder!r}"
    )
    way_back = recovery_hint(active.embedder, active.dimensions)
    return warning(
        "index", Finding.INDEX_EMBEDDER, detail, f"`jobctl index rebuild` for these; or {way_back}"
    )


def _check_words(tokenizer_version: int | None, state: Generations) -> list[Diagnostic]:
    """Check that the words of chunks are kept in the form in which a query's words are."""
    if tokenizer_version in (None, TOKENIZER_VERSION) or state.building is not None:
        return []
    detail = "it keeps words as an earlier version did: `wing` may not find `wings`"
    remedy = "jobctl index rebuild --force"
    return [warning("index words", Finding.INDEX_WORDS, detail, remedy)]


async def _check_vectors(opened: OpenIndex, active: Generation) -> list[Diagnostic]:
    """Check that a server still makes the vectors that are searched. No diagnostic where the
    embedder uses no server, or where no probe is stored yet."""
    if is_offline(active.embedder):
        return []
    embedder = opened.unprobed_of(active)
    try:
        async with asyncio.timeout(TIMEOUT):
            likeness = await probe_likeness(opened.store, active, embedder)
    except IndexUnavailable:
        raise
    except (RetryableError, TimeoutError) as error:
        detail = str(error) or f"it has not answered within {TIMEOUT:g} s"
        remedy = "see JOBS_EMBED_BASE_URL: is it right, does the server run?"
        return [warning("embedder", Finding.EMBEDDER_AWAY, detail, remedy)]
    if likeness is None:
        return []
    if likeness < MIN_COSINE:
        return [
            failure("embedder", Finding.INDEX_VECTORS, describe_mismatch(active, likeness), REMEDY)
        ]
    return [ok("embedder", f"it makes the vectors that the index holds (likeness {likeness:.2f})")]
