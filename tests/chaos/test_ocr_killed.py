"""Workers are killed while they read a scan: in the end each page was read, and only once."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from switchyard.services.common.files.storage_keys import page_key, stage_key
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.records.states import State
from switchyard.services.engine.wings import job_modules
from switchyard.services.pipeline.ledger import PipelineLedger
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.pdfs import scan, slips
from tests.support.quick_rapidocr import install, make_numbered_pages, text_of
from tests.support.system import open_system
from tests.support.worker_process import Processes

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]


async def test_a_scan_whose_workers_are_killed_has_each_page_once(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    texts = [text_of(number) for number in range(1, 11)]
    await read_under_kills(broker310, sqlite_url, tmp_path, scan(slips(texts)), texts, kills=2)


async def test_a_scan_of_300_pages_whose_workers_are_killed_five_times_has_each_page_once(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(install(tmp_path / "quick")))
    texts = [text_of(number) for number in range(1, 301)]
    await read_under_kills(
        broker310, sqlite_url, tmp_path, make_numbered_pages(300), texts, kills=5, pages_per_kill=40
    )


async def read_under_kills(
    broker310: TestBroker,
    sqlite_url: str,
    tmp_path: Path,
    content: bytes,
    texts: Sequence[str],
    *,
    kills: int,
    pages_per_kill: int = 1,
) -> None:
    """Let workers read a scan, and kill each of them after `pages_per_kill` further pages.
    Stored pages are not read again, and the document has the texts in their order."""
    page_count = len(texts)
    path = tmp_path / "heap.pdf"
    path.write_bytes(content)
    async with (
        open_system(
            broker310, sqlite_url, modules=job_modules(), data_dir=tmp_path, takeover_after=0.8
        ) as system,
        Processes(system.settings, tmp_path) as processes,
    ):
        await system.start_worker("ingest", "llm", "embed", "link")
        request = JobRequest("hot.ingest_document", {"path": str(path)})
        job_id = (await system.jobs.publish(request)).job_id
        ingested = await system.wait_for_state(job_id, State.SUCCEEDED, timeout=30)
        document_id = str((ingested.result or {})["document_id"])
        files = {
            number: tmp_path / "files" / page_key(document_id, "ocr_pdf", number)
            for number in range(1, page_count + 1)
        }
        written_at: dict[int, float] = {}

        def has_read_more() -> bool:
            return sum(file.exists() for file in files.values()) >= len(written_at) + pages_per_kill

        for _ in range(kills):
            victim = await processes.start("worker", kind="ocr", slots=2)
            await eventually(has_read_more, 90)
            victim.kill()
            await victim.ended()
            written_at |= {
                number: file.stat().st_mtime for number, file in files.items() if file.exists()
            }
        assert len(written_at) < page_count
        await processes.start("worker", kind="ocr", slots=2)

        async def is_done() -> bool:
            document = await PipelineLedger(system.ledger).documents.get_document(document_id)
            return document is not None and document.state == "completed"

        await eventually(is_done, 150)
        read_again = {
            number
            for number, modified_at in written_at.items()
            if files[number].stat().st_mtime != modified_at
        }
        assert read_again == set()
        jobs = await system.ledger.job_reads.pipeline(job_id)
        (extracted,) = [job.id for job in jobs if job.job_type == "extract_text"]
        assert ((await system.record(extracted)).result or {})["page_count"] == page_count
        stored_text = tmp_path / "files" / stage_key(document_id, "extract_text")
        pages = json.loads(stored_text.read_text())["result"]["pages"]
        assert [page["text"] for page in pages] == list(texts)
