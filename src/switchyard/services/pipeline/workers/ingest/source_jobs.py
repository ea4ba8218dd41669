"""Job types that take in items of a server: one document for each, renewed when the item changes.

    ingest_zenodo = ingest_job(Zenodo())

in a module of job types makes the job type `ingest_zenodo` of a DocumentSource; the variable has
the job type's name.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pydantic import BaseModel

from switchyard.broker.message import now
from switchyard.services.common.files.media_types import JPEG, MARKDOWN, PDF, PNG, TIFF, WEBP
from switchyard.services.common.files.storage_keys import content_hash
from switchyard.services.common.files.uploads import FileIdentity, identify
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Outcome, Snooze
from switchyard.services.engine.jobs.registry import RegistryError, hint_of, job
from switchyard.services.pipeline.sources.document_source import DocumentSource, FoundDocument
from switchyard.services.pipeline.sources.github import GithubSource
from switchyard.services.pipeline.sources.huggingface import HuggingfaceSource
from switchyard.services.pipeline.sources.source_client import SourceClient
from switchyard.services.pipeline.sources.source_errors import SourceBusy
from switchyard.services.pipeline.workers.ingest.incoming_document import (
    IncomingDocument,
    document_of_source,
    duplicate_outcome,
    extract_next,
    is_taken,
    source_lease,
    taken_by_another,
)
from switchyard.services.pipeline.workers.stages import document_id_of

MAX_SNOOZE = 80.0
"""Seconds that a job snoozes at most, unless the server asks for more."""

_SUFFIXES = {MARKDOWN: "md", PDF: "pdf", PNG: "png", JPEG: "jpg", TIFF: "tif", WEBP: "webp"}

Handler = Callable[[Any, JobContext], Awaitable[Outcome]]


def ingest_job(
    source: DocumentSource,
    *,
    worker: str = "ingest",
    lanes: Sequence[str] = ("hot", "backfill"),
    timeout: float = 300,
) -> Handler:
    """Make the handler of the job type `ingest_NAME`, which takes in what a source has. Its payload
    is the model that `find` is annotated with; with `force: true` in it, all stages run again.

    Raises RegistryError.
    """
    name = f"ingest_{source.name}"
    if re.fullmatch(r"[a-z][a-z0-9_]{0,40}", source.name) is None:
        raise RegistryError(f"source {source.name!r}: use lower-case letters, digits and _")
    model = hint_of(source.find, "item")
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise RegistryError(f"find of {name} must take (self, item: MODEL, client)")

    if source.requests * source.interval > timeout / 2:
        raise RegistryError(
            f"{name}: {source.requests} requests at intervals of {source.interval:g} s take more "
            f"than half of its {timeout:g} s"
        )

    async def handler(payload: Any, ctx: JobContext) -> Outcome:
        asked_at = _now(ctx)
        try:
            async with (
                SourceClient.connect(
                    source.server(ctx.settings), ctx.settings, ctx.ledger, lane=ctx.lane
                ) as client,
                client.reserve(source.requests),
            ):
                document = await source.find(payload, client)
        except SourceBusy as busy:
            return snooze_for_turn(busy, ctx)
        force = getattr(payload, "force", False) is True
        return await ingest_found(
            document, f"{source.name}:{document.id}", ctx, asked_at=asked_at, force=force
        )

    handler.__name__ = handler.__qualname__ = name
    # The caller's module: there the registry, and another process, look for the handler.
    handler.__module__ = sys._getframe(1).f_globals["__name__"]
    handler.__doc__ = f"Take in a document of {source.label}."
    handler.__annotations__ = {"payload": model, "ctx": JobContext}
    return job(name, worker=worker, lanes=lanes, timeout=timeout)(handler)


def snooze_for_turn(busy: SourceBusy, ctx: JobContext) -> Snooze:
    """Return the outcome of a job that gets no turn now: it snoozes, which uses up no attempt."""
    moment = now() if ctx.ledger is None else ctx.ledger.clock.now()
    age = (moment - ctx.message.metadata.created_at).total_seconds()
    return Snooze(snooze_for(busy.wait, age, random.random()), str(busy))


def snooze_for(wait: float, age: float, chance: float) -> float:
    """Return the seconds until a job that is `age` seconds old tries again to get a turn. Jobs that
    came together are spread by `chance` (0 to 1), and the longer they wait, the less often they
    try: a thousand jobs that tried every few seconds would keep the workers busy."""
    return max(wait, chance * min(age / 5, MAX_SNOOZE))


async def ingest_found(
    document: FoundDocument,
    source: str,
    ctx: JobContext,
    *,
    asked_at: float,
    force: bool = False,
) -> Outcome:
    """Make the document of that source, or bring it up to date, and start the pipeline.

    Content that the document has already is a duplicate: nothing runs then, unless its pipeline has
    not come to an end. `asked_at` is the time of the request to the source, by the ledger's clock:
    content that another job has taken in since then may be newer.
    """
    data, identity = await asyncio.to_thread(_identify_content, document)
    content_mark = content_hash([identity.sha256, dict(document.metadata)])[:12]
    incoming = IncomingDocument(
        data,
        identity,
        source=source,
        filename=f"{_slug(document.id)}@{content_mark}.{_SUFFIXES.get(identity.media_type, 'txt')}",
        title=document.title[:1000],
        pipeline=ctx.pipeline,
        entry=document.metadata,
    )
    document_id = document_id_of(source)
    has_changed = is_resumed = False
    if ctx.ledger is None:
        await incoming.store(ctx, document_id)
    else:
        async with source_lease(ctx.ledger, source):
            known, claim = await document_of_source(ctx, source)
            if known is not None:
                is_same = f"@{content_mark}." in (known.filename or "")
                if is_same and not force and await is_taken(ctx, known):
                    return duplicate_outcome(known)
                is_resumed = known.pipeline == ctx.pipeline
                if not is_same and not is_resumed and known.updated_at > asked_at:
                    return taken_by_another(source)
                has_changed = not is_same
            id_or_outcome = await incoming.take_place(ctx, ctx.ledger, known, claim)
        if not isinstance(id_or_outcome, str):
            return id_or_outcome
        document_id = id_or_outcome
    return extract_next(
        document_id,
        force=force,
        duplicate=False,
        source=source,
        updated=has_changed and not is_resumed,
    )


def _identify_content(document: FoundDocument) -> tuple[bytes, FileIdentity]:
    """Return the content of a document, and what it is."""
    if document.data is not None:
        return document.data, identify(document.data, None)
    data = document.text.encode("utf-8", "replace")
    return data, FileIdentity(content_hash(data), MARKDOWN, len(data))


def _slug(name: str) -> str:
    return re.sub(r"[^\w-]+", ".", name).strip(".")[:100]


def _now(ctx: JobContext) -> float:
    return ctx.ledger.clock.time() if ctx.ledger is not None else 0.0


ingest_github = ingest_job(GithubSource())


ingest_huggingface = ingest_job(HuggingfaceSource())
