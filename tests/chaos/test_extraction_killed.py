"""A worker is killed in the middle of a long document: its stored pages are not read again."""

import json
from pathlib import Path

import pytest

from switchyard.services.common.files.storage_keys import page_key, stage_key
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.records.states import State
from switchyard.services.engine.wings import job_modules
from switchyard.services.pipeline.text.partial_results import PAGES_PER_DRAFT
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.pdfs import lines_of_text
from tests.support.system import open_system
from tests.support.worker_process import Processes

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]

PAGES = 2_000
KILL_PAGE = 1_500


async def test_a_document_of_2000_pages_goes_on_at_page_1500_when_its_worker_is_killed_there(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    texts = [f"This is page {number} of the book." for number in range(1, PAGES + 1)]
    path = tmp_path / "book.pdf"
    path.write_bytes(lines_of_text(texts, lines=5))
    async with (
        open_system(
            broker310, sqlite_url, modules=job_modules(), data_dir=tmp_path, takeover_after=0.8
        ) as system,
        Processes(system.settings, tmp_path) as processes,
    ):
        victim = await processes.start("worker", kind="ingest")
        request = JobRequest("hot.ingest_document", {"path": str(path)})
        job_id = (await system.jobs.publish(request)).job_id
        ingested = await system.wait_for_state(job_id, State.SUCCEEDED, timeout=30)
        document_id = str((ingested.result or {})["document_id"])
        files = {
            first: tmp_path / "files" / page_key(document_id, "extract_text", first)
            for first in range(1, PAGES, PAGES_PER_DRAFT)
        }
        await eventually(files[KILL_PAGE + 1 - PAGES_PER_DRAFT].exists, 60)
        victim.kill()
        await victim.ended()
        stored_pages = sum(file.exists() for file in files.values()) * PAGES_PER_DRAFT
        assert KILL_PAGE <= stored_pages < PAGES
        (extracting,) = [
            job.id for job in await system.ledger.job_reads.pipeline(job_id) if job.id != job_id
        ]
        assert (await system.record(extracting)).progress is not None
        await processes.start("worker", kind="ingest")
        record = await system.wait_for_state(extracting, State.SUCCEEDED, timeout=60)
        assert record.result is not None
        assert (record.result["page_count"], record.result["pages_read"]) == (
            PAGES,
            PAGES - stored_pages,
        )
        stored_text = tmp_path / "files" / stage_key(document_id, "extract_text")
        pages = json.loads(stored_text.read_text())["result"]["pages"]
        assert [page["text"].splitlines()[0] for page in pages] == texts
        assert not any(file.exists() for file in files.values())
