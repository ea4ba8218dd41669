"""Parse references with the engines of the settings, in their order: each engine gets the
references for which the engine before it has failed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import structlog

from switchyard.services.common.errors import PermanentError, RetryableError
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.bounded_gather import gather_bounded
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.llm.llm_errors import LlmUnreachable
from switchyard.services.pipeline.citations.engines.grobid import GrobidEngine
from switchyard.services.pipeline.citations.engines.llm_engine import LlmEngine
from switchyard.services.pipeline.citations.offline_parser import OfflineParser
from switchyard.services.pipeline.citations.reference import Reference

BATCH_SIZE = 20
"""References of one request to a server."""
MAX_CONCURRENT_BATCHES = 4
"""Requests of one job to servers at once."""


class ReferenceEngine(Protocol):
    """Parses references into fields."""

    @property
    def name(self) -> str:
        """Name of the engine, which is the `engine` of the references that it has parsed."""
        ...

    async def parse(self, texts: Sequence[str]) -> Sequence[Reference | None]:
        """Parse each reference, in order; None for a reference that the engine leaves out.

        Raises RetryableError, PermanentError.
        """
        ...


class OfflineEngine:
    """Our own parser, which needs no server and never fails."""

    name = OfflineParser.engine

    def __init__(self, ctx: JobContext) -> None:
        self._ctx = ctx

    async def parse(self, texts: Sequence[str]) -> Sequence[Reference]:
        """Parse each reference, as ReferenceEngine says."""
        parsed: list[Reference] = await self._ctx.compute(
            parse_offline, texts, characters=sum(map(len, texts))
        )
        return parsed


def parse_offline(texts: Sequence[str]) -> list[Reference]:
    """Parse references with our own parser."""
    return OfflineParser().parse_all(texts)


def engines_of(ctx: JobContext) -> list[ReferenceEngine]:
    """Return the engines of the settings, in their order."""
    engines: list[ReferenceEngine] = []
    for name in ctx.settings.reference_engines:
        match name:
            case "grobid":
                engines.append(GrobidEngine(ctx.settings.grobid_url or ""))
            case "llm":
                engines.append(LlmEngine(ctx))
            case "offline":
                engines.append(OfflineEngine(ctx))
    return engines


def parsing_method(settings: Settings) -> list[str]:
    """Return the settings on which the fields depend: the engines' names, and the models that are
    used."""
    models = sorted({each.model for each in settings.llm_servers})
    return [*settings.reference_engines, *(models if "llm" in settings.reference_engines else ())]


async def parse_all(texts: Sequence[str], ctx: JobContext) -> list[Reference]:
    """Parse each reference, in order; `engine` names the engine that has parsed it.

    While a server is busy, the job waits, which uses up no attempt. A reference that no engine
    could parse has no field but its text. Where all engines have failed, raises what the last one
    raises.
    """
    engines = engines_of(ctx)
    if engines[0].name == OfflineEngine.name:
        return list(await OfflineEngine(ctx).parse(texts))
    batches = [texts[start : start + BATCH_SIZE] for start in range(0, len(texts), BATCH_SIZE)]
    parsing = (_parse_with_fallback(engines, batch) for batch in batches)
    return list(
        itertools.chain.from_iterable(await gather_bounded(parsing, at_once=MAX_CONCURRENT_BATCHES))
    )


async def _parse_with_fallback(
    engines: Sequence[ReferenceEngine], texts: Sequence[str]
) -> list[Reference]:
    """Parse with the first engine; the next engine gets the references that the first has left out,
    or all where the first fails."""
    parsed: dict[int, Reference] = {}
    unparsed = list(range(len(texts)))
    last_error: RetryableError | PermanentError | None = None
    has_answer = False
    for engine in engines:
        try:
            answers = await engine.parse([texts[index] for index in unparsed])
        except (RetryableError, PermanentError) as error:
            if _is_busy(error):
                raise
            structlog.get_logger("citations").warning(
                "references go to the next engine", engine=engine.name, error=str(error)
            )
            last_error = error
            continue
        has_answer = True
        answers_by_index = zip(unparsed, answers, strict=True)
        parsed |= {index: each for index, each in answers_by_index if each is not None}
        unparsed = [index for index in unparsed if index not in parsed]
        if not unparsed:
            break
    if last_error is not None and not has_answer:
        raise last_error
    return [parsed.get(index) or Reference(text=texts[index]) for index in range(len(texts))]


def _is_busy(error: RetryableError | PermanentError) -> bool:
    """Return whether the server will answer later. One that can't be reached is not busy."""
    return (
        isinstance(error, RetryableError)
        and not error.counts
        and not isinstance(error, LlmUnreachable)
    )
