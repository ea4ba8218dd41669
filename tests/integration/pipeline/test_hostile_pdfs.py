"""Hostile PDFs end in time as done, as needing OCR or as failed, and harm no other document."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from switchyard.broker.message import JobMessage
from switchyard.services.common.files.errors import (
    CorruptDocument,
    DocumentTooLarge,
    PageTooCostly,
)
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.uploads import INCOMING
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.jobs.retry import Failure
from switchyard.services.engine.runtime.execution import Executor
from switchyard.services.pipeline.text import extraction
from switchyard.services.pipeline.text.page_process import PageProcess
from switchyard.services.pipeline.text.pdf import ExtractorName, opening, read_pdf
from switchyard.services.pipeline.text.pdf_pages import Limits
from tests.integration.pipeline.conftest import Pipeline
from tests.integration.pipeline.documents import ingest, read_result, write_input
from tests.support.hostile_pdfs import (
    hostile_pdfs,
    nested_fonts,
    nested_forms,
    with_a_costly_page,
)
from tests.support.pdfs import TEXT, pdf

TIME_LIMIT = 20.0
"""Seconds for the text of one file; `extract_text` has 120."""
FAILURES = {
    "CorruptDocument",
    "DocumentTooLarge",
    "EncryptedDocument",
    "UnsupportedDocument",
    "MemoryError",
    "ProcessorTimeExceeded",
    "TimeLimitExceeded",
    "ProcessCrashed",
}
TOO_COSTLY = "takes more than"
"""Part of the message of a page, or a document, that is given up for its processor time."""

_OVER_TIME = {"ProcessorTimeExceeded", "TimeLimitExceeded"}
HOSTILE_TO_PDFIUM: dict[str, tuple[Callable[[], bytes], set[str]]] = {
    "fonts-within-fonts": (nested_fonts, {"CorruptDocument"}),
    "forms-within-forms": (lambda: nested_forms(depth=11, width=10), _OVER_TIME),
}


async def extract(
    executor: Executor, settings: Settings, name: str, data: bytes, **limits: Any
) -> Any:
    """Extract the text of a file, with `limits` in place of those of the job type. Returns how that
    ended, and the seconds that it took."""
    key = f"{INCOMING}{name}"
    await Storage(settings.files_url).put_async(key, data)
    job_type = replace(Registry.load().get("extract_text"), **{"timeout": TIME_LIMIT, **limits})
    message = JobMessage(job_type="extract_text", payload={"key": key})
    ctx = JobContext(message, "hot", "test", settings)
    began = time.monotonic()
    outcome = await executor.run(job_type, job_type.validate(message.payload), ctx)
    return outcome, time.monotonic() - began


async def run_hostile_pdfs(settings: Settings, count: int) -> Counter[str]:
    """Run hostile files through the pipeline, with an ordinary one beside every tenth. Returns how
    each ended."""
    executor = Executor(processes=2)
    slots = asyncio.Semaphore(2)
    outcomes: Counter[str] = Counter()

    async def run_hostile(file_number: int, name: str, data: bytes) -> None:
        async with slots:
            outcome, seconds = await extract(executor, settings, f"hostile-{file_number}", data)
        # The limit counts twice where a reused process was replaced.
        assert seconds < 2 * TIME_LIMIT + 10, (name, seconds)
        if isinstance(outcome, Done):
            outcomes["needs_ocr" if outcome.result["needs_ocr"] else "done"] += 1
            return
        assert isinstance(outcome, Failure), (name, outcome)
        assert outcome.error_type in FAILURES, (name, outcome.error_type, outcome.traceback)
        outcomes["too costly" if TOO_COSTLY in outcome.message else outcome.error_type] += 1

    async def run_ordinary(file_number: int) -> None:
        async with slots:
            data = pdf([f"{TEXT} Number {file_number}."])
            outcome, _ = await extract(executor, settings, f"ordinary-{file_number}", data)
        assert isinstance(outcome, Done), (file_number, outcome)
        assert not outcome.result["needs_ocr"]

    try:
        async with asyncio.TaskGroup() as running:
            for file_number, (name, data) in enumerate(hostile_pdfs(count)):
                running.create_task(run_hostile(file_number, name, data))
                if file_number % 10 == 0:
                    running.create_task(run_ordinary(file_number))
    finally:
        await executor.close()
    return outcomes


async def test_a_small_pdf_that_never_comes_to_its_end_is_given_up_at_its_first_attempt(
    settings: Settings,
) -> None:
    extract_text = Registry.load().get("extract_text")
    assert extract_text.cpu_limit is not None
    assert extract_text.cpu_limit <= extract_text.timeout / 2
    endless = nested_forms(depth=11, width=10)
    assert len(endless) < 4_000
    executor = Executor(processes=1)
    limits = {"cpu_limit": 2, "timeout": 3 * TIME_LIMIT}
    try:
        outcome, _ = await extract(executor, settings, "endless", endless, **limits)
        ordinary_outcome, _ = await extract(executor, settings, "ordinary", pdf([TEXT]), **limits)
    finally:
        await executor.close()
    assert (outcome.error_type, outcome.permanent) == ("ProcessorTimeExceeded", True)
    assert "2 s of processor time" in outcome.message
    assert isinstance(ordinary_outcome, Done)


QUICK_LIMITS = Limits(page_seconds=1, lost_pages=1)


@pytest.mark.parametrize(
    ("kind", "extractor"),
    [("forms", "pymupdf"), ("patterns", "pymupdf"), ("forms", "pypdfium2")],
)
def test_pages_beside_a_too_costly_one_are_read(kind: str, extractor: ExtractorName) -> None:
    document = read_pdf(with_a_costly_page(kind), QUICK_LIMITS, extractor)
    assert [page.text for page in document.pages] == [f"{TEXT} Page 1.", "", f"{TEXT} Page 3."]
    reason = "page 2 of the PDF takes more than 1 s of processor time"
    assert [page.error for page in document.pages] == [None, reason, None]


@pytest.mark.parametrize(("kind", "extractor"), [("fonts", "pymupdf"), ("patterns", "pypdfium2")])
def test_a_page_that_only_costs_too_much_to_draw_is_read_and_not_drawn(
    kind: str, extractor: ExtractorName
) -> None:
    content = with_a_costly_page(kind)
    assert not any(page.error for page in read_pdf(content, QUICK_LIMITS, extractor).pages)
    with opening(content, QUICK_LIMITS, extractor) as opened:
        with pytest.raises(PageTooCostly, match="page 2 of the PDF takes more than 1 s"):
            opened.draw(2, dpi=72, side=1_000)
        assert opened.draw(3, dpi=72, side=1_000).shape[2] == 3


def test_a_document_of_many_costly_pages_is_refused_by_the_second_that_is_too_many() -> None:
    lost_pages: list[int] = []
    with PageProcess(_endless, QUICK_LIMITS) as process:
        for number in (1, 2, 3):
            with pytest.raises(PageTooCostly if number == 1 else DocumentTooLarge):
                process.run(number)
            lost_pages.append(process._lost_pages)
    assert lost_pages == [1, 2, 2]


def _endless(_number: int) -> None:
    while True:
        pass


def test_a_crash_of_the_library_at_one_page_does_not_stop_the_others() -> None:
    def read_page(number: int) -> int:
        if number == 2:
            faulthandler.disable()
            os.kill(os.getpid(), signal.SIGABRT)
        return number

    with PageProcess(read_page, QUICK_LIMITS) as process:
        assert process.run(1) == 1
        with pytest.raises(CorruptDocument, match=r"page 2 crashes the library .*SIGABRT"):
            process.run(2)
        assert process.run(3) == 3


def test_an_error_that_can_not_be_unpickled_is_raised_with_its_text() -> None:
    class CustomError(Exception):
        pass

    def read_page(number: int) -> None:
        raise CustomError(f"page {number}") if number == 1 else CorruptDocument("damaged")

    with PageProcess(read_page, QUICK_LIMITS) as process:
        with pytest.raises(RuntimeError, match="CustomError: page 1"):
            process.run(1)
        with pytest.raises(CorruptDocument, match="damaged"):
            process.run(2)


async def test_a_document_tells_which_page_was_too_costly(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction, "read_pdf", partial(read_pdf, limits=QUICK_LIMITS))
    payload = write_input(tmp_path, "forms.pdf", with_a_costly_page("forms"))
    document_id = await ingest(pipeline, payload)
    result = read_result(pipeline, document_id)
    reason = "page 2 of the PDF takes more than 1 s of processor time"
    assert (result["unreadable_pages"], result["page_errors"]) == ([2], {"2": reason})


@pytest.mark.long
@pytest.mark.parametrize("name", HOSTILE_TO_PDFIUM)
async def test_a_pdf_that_harms_pdfium_harms_its_own_process_alone(
    settings: Settings, name: str
) -> None:
    make_pdf, allowed_errors = HOSTILE_TO_PDFIUM[name]
    pdfium_settings = settings.model_copy(update={"pdf_extractor": "pypdfium2"})
    executor = Executor(processes=1)
    try:
        outcome, _ = await extract(executor, pdfium_settings, name, make_pdf(), cpu_limit=2)
        ordinary_outcome, _ = await extract(
            executor, pdfium_settings, "ordinary", pdf([TEXT]), cpu_limit=2
        )
    finally:
        await executor.close()
    assert isinstance(outcome, Failure)
    assert outcome.error_type in allowed_errors, outcome
    assert isinstance(ordinary_outcome, Done)
    assert not ordinary_outcome.result["needs_ocr"]


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_some_hostile_pdfs_harm_no_ordinary_one(settings: Settings) -> None:
    outcomes = await run_hostile_pdfs(settings, 26)
    assert outcomes.total() == 26
    # On a busy machine, the time limit of the whole job is reached first.
    assert outcomes["too costly"] + outcomes["TimeLimitExceeded"] >= 1, outcomes


@pytest.mark.long
@pytest.mark.timeout(1_800)
async def test_three_hundred_hostile_pdfs_harm_no_ordinary_one(settings: Settings) -> None:
    outcomes = await run_hostile_pdfs(settings, 320)
    assert outcomes.total() == 320
    assert min(outcomes["done"], outcomes["needs_ocr"], outcomes["CorruptDocument"]) > 0, outcomes
