"""The doctor's question about the index: does it hold the vectors that the settings name?"""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import unquote, urlsplit

from switchyard.services.index.chunk_index import IndexAway, way_back
from switchyard.services.index.opening import open_index
from switchyard.services.jobs.outcomes import PermanentError
from switchyard.services.monitoring.check import Check, Finding, warning, well, wrong
from switchyard.services.settings import Settings

TIMEOUT = 8.0
"""Seconds that an index has to say what it is; an object store is asked again meanwhile."""


async def index(settings: Settings) -> list[Check]:
    """Whether it answers, and is of the settings' embedder. Nothing is made."""
    if _is_none_here(settings.vectors_url):
        return [well("index", "nothing has been indexed yet")]
    try:
        async with asyncio.timeout(TIMEOUT), open_index(settings) as opened:
            state, wanted = await opened.generations(), opened.wanted
    except (IndexAway, TimeoutError) as error:
        detail = str(error) or f"it has not answered within {TIMEOUT:g} s"
        remedy = "see JOBS_INDEX_URL: is it right, does the database or object store run?"
        return [wrong("index", Finding.INDEX_AWAY, detail, remedy)]
    except PermanentError as error:
        remedy = "correct JOBS_INDEX_URL, or JOBS_EMBED_…"
        return [wrong("index", Finding.INDEX_UNUSABLE, str(error), remedy)]
    active = state.active
    if (active.embedder, active.dimensions) == (wanted.embedder, wanted.dimensions):
        return [well("index", f"it holds vectors of {active.embedder!r}, as the settings name")]
    if any(each.embedder == wanted.embedder for each in state.written):
        return [well("index", f"it is being built anew for {wanted.embedder!r}")]
    detail = (
        f"it holds vectors of {active.embedder!r}, and is searched with them; the settings name "
        f"{wanted.embedder!r}"
    )
    back = way_back(active.embedder, active.dimensions)
    return [warning("index", Finding.INDEX_EMBEDDER, detail, back)]


def _is_none_here(url: str) -> bool:
    """Whether it would lie in a directory of this host that is not there."""
    parts = urlsplit(url)
    return parts.scheme in ("", "file") and not Path(unquote(parts.path)).is_dir()
