"""`make bench ARGS=documents`: PDFs of about 2,000 words through every stage of the pipeline."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.common import end_group, environment
from benchmarks.measurements import Measurement, Row
from benchmarks.stage import Stage
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.requests import DocumentFilter
from switchyard.services.engine.wings import job_modules
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.records.documents import COMPLETED
from switchyard.services.pipeline.samples.generated_samples import generate

WORKERS = ("ingest", "llm", "embed", "link")
"""One process of each."""
PAGES, WORDS = 5, 400
"""Of a document, and words of each page."""
WARM = 10
"""Documents until every process has loaded what it loads once; they are not counted."""
STALLED = 120.0
"""Seconds without a document that is done, after which the run has failed."""


def _pdf(randomly: random.Random, words: list[str]) -> bytes:
    import pymupdf

    opened: Any = pymupdf.open
    with opened() as document:
        for _ in range(PAGES):
            drawn = [randomly.choice(words) for _ in range(WORDS)]
            sentences = [
                " ".join(drawn[at : at + 16]).capitalize() + "." for at in range(0, WORDS, 16)
            ]
            page = document.new_page()
            page.insert_textbox((50, 50, 545, 800), " ".join(sentences), fontsize=10)
        made: bytes = document.tobytes()
    return made


def _vocabulary() -> list[str]:
    (sample,) = generate(1, seed=12, kinds=("report",), languages=("en",))
    return sorted({word for block in sample.blocks for word in block.text.split()})


@contextmanager
def _workers(stage: Stage, env: dict[str, str]) -> Iterator[None]:
    started = []
    try:
        for kind in WORKERS:
            with (stage.directory / f"documents-{kind}.log").open("wb") as log:
                command = [sys.executable, "-m", "switchyard.cli.main", "worker", kind]
                started.append(
                    subprocess.Popen(
                        command, env=env, stdout=log, stderr=log, start_new_session=True
                    )
                )
        yield
    finally:
        for process in started:
            end_group(process)


def _publish(paths: list[Path], env: dict[str, str]) -> None:
    lines = "\n".join(json.dumps({"path": str(path)}) for path in paths)
    key = "backfill.ingest_document"
    subprocess.run(
        [sys.executable, "-m", "switchyard.cli.main", "publish", key, "--payload", "-"],
        input=lines.encode(),
        env=env,
        stdout=subprocess.DEVNULL,
        check=True,
    )


async def _until(ledger: Ledger, wanted: int) -> None:
    """Wait until so many documents are through. Raises RuntimeError where none comes any more."""
    done, since = 0, time.monotonic()
    while done < wanted:
        now = await PipelineLedger(ledger).documents.count_documents(
            DocumentFilter(state=COMPLETED)
        )
        if now > done:
            done, since = now, time.monotonic()
        if time.monotonic() - since > STALLED:
            raise RuntimeError(f"{done} of {wanted} documents are through, and no more come")
        await asyncio.sleep(0.1)


async def _through(env: dict[str, str], paths: list[Path]) -> float:
    """Documents a second."""
    async with await Ledger.open(env["JOBS_DATABASE_URL"]) as ledger:
        await asyncio.to_thread(_publish, paths[:WARM], env)
        await _until(ledger, WARM)
        began = time.monotonic()
        await asyncio.to_thread(_publish, paths[WARM:], env)
        await _until(ledger, len(paths))
        return (len(paths) - WARM) / (time.monotonic() - began)


def documents(stage: Stage, rounds: int, count: int) -> list[Row]:
    """PDFs of about 2,000 words from publish to `completed`, the offline embedder, one worker
    process of each kind, PostgreSQL."""
    row = Row("through all stages", "documents/s", target="at least 6")
    words = _vocabulary()
    for number in range(rounds):
        randomly = random.Random(number)
        folder = stage.folder("papers")
        paths = []
        for each in range(count + WARM):
            paths.append(folder / f"{each}.pdf")
            paths[-1].write_bytes(_pdf(randomly, words))
        own = stage.switchyard("documents", "postgresql", modules=job_modules())
        env = environment("", **own)
        with _workers(stage, env):
            row.rounds.append(asyncio.run(_through(env, paths)))
    return [row]


ALL: dict[str, tuple[Measurement, int, int]] = {"documents": (documents, 1, 600)}
