"""Which engine cuts a job's references: those of the settings in their order, each where the one
before it has failed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import structlog

from switchyard.services.common.errors import PermanentError, RetryableError
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.together import gather_bounded
from switchyard.services.llm.llm_errors import LlmUnreachable
from switchyard.services.pipeline.citations.engines.grobid import GrobidEngine
from switchyard.services.pipeline.citations.engines.model import ModelEngine
from switchyard.services.pipeline.citations.parsing import OfflineParser
from switchyard.services.pipeline.citations.reference import Reference

BATCH_SIZE = 20
"""References of one question to a server."""
MAX_CONCURRENT_BATCHES = 4
"""Questions of one job to servers at once."""


class ReferenceEngine(Protocol):
    """Cuts references into fields."""

    @property
    def name(self) -> str:
        """Stands in each reference that it has cut."""
        ...

    async def parse(self, texts: Sequence[str]) -> Sequence[Reference | None]:
        """Each reference, cut, in their order; None for one that it has no answer for.

        Raises RetryableError, PermanentError.
        """
        ...


class OfflineEngine:
    """Our own parser, which needs no server and never fails."""

    name = OfflineParser.engine

    def __init__(self, ctx: JobContext) -> None:
        self._ctx = ctx

    async def parse(self, texts: Sequence[str]) -> Sequence[Reference]:
        """As in ReferenceEngine."""
        parsed: list[Reference] = await self._ctx.compute(
            parsed_offline, texts, characters=sum(map(len, texts))
        )
        return parsed


def parsed_offline(texts: Sequence[str]) -> list[Reference]:
    """References, cut by our own parser."""
    return OfflineParser().parse_all(texts)


def engines_of(ctx: JobContext) -> list[ReferenceEngine]:
    """The engines of the settings, in their order."""
    made: list[ReferenceEngine] = []
    for name in ctx.settings.reference_engines:
        match name:
            case "grobid":
                made.append(GrobidEngine(ctx.settings.grobid_url or ""))
            case "llm":
                made.append(ModelEngine(ctx))
            case "offline":
                made.append(OfflineEngine(ctx))
    return made


def method_of(settings: Settings) -> list[str]:
    """What the fields depend on beside the text."""
    models = sorted({each.model for each in settings.llm_servers})
    return [*settings.reference_engines, *(models if "llm" in settings.reference_engines else ())]


async def parse_all(texts: Sequence[str], ctx: JobContext) -> list[Reference]:
    """Each reference, cut, in their order; `engine` says by whom.

    A server that is busy is waited for, at the cost of no attempt. Raises what the last engine
    raises, where all have failed.
    """
    engines = engines_of(ctx)
    if engines[0].name == OfflineEngine.name:
        return list(await OfflineEngine(ctx).parse(texts))
    batches = [texts[start : start + BATCH_SIZE] for start in range(0, len(texts), BATCH_SIZE)]
    parsing = (_first_that_can(engines, batch) for batch in batches)
    return list(
        itertools.chain.from_iterable(await gather_bounded(parsing, at_once=MAX_CONCURRENT_BATCHES))
    )


async def _first_that_can(
    engines: Sequence[ReferenceEngine], texts: Sequence[str]
) -> list[Reference]:
    """What one engine leaves out, the next one does; and all, where it fails."""
    made: dict[int, Reference] = {}
    left = list(range(len(texts)))
    failed: RetryableError | PermanentError | None = None
    for engine in engines:
        try:
            found = await engine.parse([texts[place] for place in left])
        except (RetryableError, PermanentError) as error:
            if _is_busy(error):
                raise
            structlog.get_logger("citations").warning(
                "references go to the next engine", engine=engine.name, error=str(error)
            )
            failed = error
            continue
        made |= {place: each for place, each in zip(left, found, strict=True) if each is not None}
        left = [place for place in left if place not in made]
        if not left:
            break
    if left and failed is not None:
        raise failed
    return [made.get(place) or Reference(text=texts[place]) for place in range(len(texts))]


def _is_busy(error: RetryableError | PermanentError) -> bool:
    """It will answer, and not now; unlike one that is away."""
    return (
        isinstance(error, RetryableError)
        and not error.counts
        and not isinstance(error, LlmUnreachable)
    )
