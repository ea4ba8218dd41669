"""Documents with a broker: 202, then polling, while workers do the work."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from switchyard.services.common.settings import Settings
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.identity.storage_identity import MARKER
from switchyard.services.engine.records.states import State
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.samples.articles import sample
from tests.integration.api.document_server import (
    WORKERS,
    in_parts,
    send,
    serving_system,
    wait_until_ended,
)
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.llm_server import FakeLlmServer, fails
from tests.support.pdfs import pdf, scan, slips
from tests.support.redrives import redrive
from tests.support.system import lanes_with


async def test_an_upload_is_accepted_processed_and_found_by_search(
    broker310: TestBroker, database_url: str, tmp_path: Path
):
    async with serving_system(broker310, database_url, tmp_path) as (system, client):
        tags = {"team": "search"}
        accepted = await send(
            client, sample(0).content, source="here", title="Mine", tags=json.dumps(tags)
        )
        assert accepted.status_code == 202, accepted.text
        document_id = accepted.json()["document_id"]
        assert accepted.headers["location"] == f"/documents/{document_id}"
        assert accepted.headers["retry-after"]
        waiting = (await client.get(accepted.headers["location"])).json()
        assert (waiting["state"], waiting["current_stage"]) == ("queued", "ingest_document")
        early = await client.get(f"/documents/{document_id}/result")
        assert (early.status_code, early.json()["type"]) == (409, "/problems/not-finished")
        assert early.headers["retry-after"]
        await system.start_worker(*WORKERS)
        done = await wait_until_ended(client, document_id)
        assert (done["state"], done["current_stage"]) == ("completed", None)
        pipeline_jobs = await system.ledger.job_reads.list_jobs()
        assert len(pipeline_jobs.items) > 2
        assert all(job.tags == tags for job in pipeline_jobs.items)
        assert (done["title"], done["source"], done["filename"]) == ("Mine", "here", "paper.pdf")
        listed = (await client.get("/documents")).json()["documents"][0]
        for view in (done, listed):
            for name in ("created_at", "updated_at"):
                assert datetime.fromisoformat(view[name]).utcoffset() == timedelta(0)
        result = await client.get(f"/documents/{document_id}/result", params={"include": "text"})
        first_words = " ".join(result.json()["pages"][0]["text"].split()[:8])
        results = (await client.post("/search", json={"query": first_words})).json()
        assert document_id in {hit["document_id"] for hit in results["hits"]}
        again = await send(client, sample(0).content, name="other.pdf")
        assert (again.status_code, again.json()["document_id"]) == (200, document_id)
        other = await send(client, sample(1).content, source="here")
        assert (other.status_code, other.json()["document_id"]) == (200, document_id)


@pytest.mark.parametrize("same", ["content", "source"])
async def test_uploads_at_the_same_time_make_one_document(
    broker310: TestBroker, database_url: str, tmp_path: Path, same: str
):
    contents = [sample(0 if same == "content" else number).content for number in range(4)]
    async with serving_system(broker310, database_url, tmp_path) as (system, client):
        answers = await asyncio.gather(*(send(client, each, source="here") for each in contents))
        assert {answer.status_code for answer in answers} <= {200, 202}
        await system.start_worker(*WORKERS)
        done = await asyncio.gather(
            *(wait_until_ended(client, answer.json()["document_id"]) for answer in answers)
        )
        assert {each["state"] for each in done} == {"completed"}
        assert len({each["document_id"] for each in done}) == 1
        assert len((await client.get("/documents")).json()["documents"]) == 1


async def test_a_failed_document_names_the_job_and_completes_after_its_redrive(
    broker310: TestBroker, database_url: str, tmp_path: Path
):
    with FakeLlmServer() as llm:
        async with serving_system(
            broker310, database_url, tmp_path, llm_base_url=llm.url, llm_model="m"
        ) as (system, client):
            llm.always(fails(500))
            worker = await system.start_worker(*WORKERS)
            document_id = (await send(client, sample(0).content)).json()["document_id"]
            failed = await wait_until_ended(client, document_id)
            assert (failed["state"], failed["current_stage"]) == ("failed", "summarize_content")
            assert failed["completed_stages"] == ["ingest_document", "extract_text"]
            assert (failed["error"]["reason"], failed["error"]["attempts"]) == ("exhausted", 3)
            # Its record still says `summarizing`: an exhausted job does not change it.
            for params, count in (({}, 1), ({"state": "failed"}, 1), ({"state": "summarizing"}, 0)):
                answer = await client.get("/documents", params=params)
                listed = answer.json()["documents"]
                assert [each.items() <= failed.items() for each in listed] == [True] * count
            refused = await client.get(f"/documents/{document_id}/result")
            assert (refused.status_code, refused.json()["type"]) == (
                409,
                "/problems/document-failed",
            )
            assert refused.json()["job_id"] == failed["error"]["job_id"]
            await worker.stop()
            llm.always(None)
            job_id = failed["error"]["job_id"]
            await system.wait_for_letter(job_id)
            redriven = await redrive(system, LetterFilter(ids=frozenset({job_id})))
            assert redriven.redriven == 1
            again = (await client.get(f"/documents/{document_id}")).json()
            assert (again["state"], again["error"]) == ("summarizing", None)
            await system.start_worker(*WORKERS)
            done = await wait_until_ended(client, document_id)
            assert (done["state"], done["error"]) == ("completed", None)
            result = (await client.get(f"/documents/{document_id}/result")).json()
            assert result["summary"]["method"] == "llm"


async def test_a_listing_by_state_continues_over_pages_without_a_match(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
):
    async with serving_system(broker310, sqlite_url, tmp_path) as (system, client):
        for n in range(30):
            document, _ = await PipelineLedger(system.ledger).documents.upsert_document(
                f"hash {n}", state="extracting", pipeline=f"run-{n}"
            )
            if n == 2:
                failed_id = document.id
                await system.publish("hot.link_content", {"document_id": failed_id}, job_id="run-2")
                await system.ledger.jobs.cancel("run-2", time.time())
        ids, pages, cursor = [], 0, None
        while pages == 0 or cursor:
            params = {"state": "failed", "limit": "1", **({"cursor": cursor} if cursor else {})}
            page = (await client.get("/documents", params=params)).json()
            ids += [each["document_id"] for each in page["documents"]]
            cursor = page["next_cursor"]
            pages += 1
        assert ids == [failed_id]
        assert 1 < pages < 10


async def test_a_failed_document_sent_again_gets_another_run(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
):
    async with serving_system(broker310, sqlite_url, tmp_path) as (system, client):
        first = await send(client, sample(0).content)
        for upload in (tmp_path / "files" / "uploads" / "incoming").iterdir():
            upload.unlink()
        await system.start_worker(*WORKERS)
        failed = await wait_until_ended(client, first.json()["document_id"])
        assert (failed["state"], failed["current_stage"]) == ("failed", "ingest_document")
        assert "send the file again" in failed["error"]["message"]
        again = await send(client, sample(0).content)
        assert (again.status_code, again.json()["document_id"]) == (202, failed["document_id"])
        done = await wait_until_ended(client, failed["document_id"])
        assert done["state"] == "completed"
        (listed,) = (await client.get("/documents")).json()["documents"]
        # The document is completed before the end of its last job is recorded.
        changed = ("updated_at",)
        assert listed == {name: done[name] for name in listed} | {
            name: listed[name] for name in changed
        }
        assert (await send(client, sample(0).content)).status_code == 200


async def test_a_document_of_images_waits_for_an_ocr_worker(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
):
    async with serving_system(broker310, sqlite_url, tmp_path) as (system, client):
        await system.start_worker(*WORKERS)
        accepted = await send(client, scan(slips(["A heron in the reeds"])), lane="backfill")
        address = f"/documents/{accepted.json()['document_id']}"

        async def needs_ocr() -> dict[str, Any] | None:
            body: dict[str, Any] = (await client.get(address)).json()
            return body if body["state"] == "needs_ocr" else None

        waiting = await eventually(needs_ocr, 60)
        assert waiting["completed_stages"] == ["ingest_document", "extract_text"]
        await eventually(
            lambda: _is_at_ocr(client, address), what="the job of OCR to be in its queue"
        )
        again = await send(client, scan(slips(["A heron in the reeds"])))
        assert (again.status_code, again.json()["duplicate"]) == (200, True)
        early = await client.get(f"{address}/result")
        assert (early.status_code, early.json()["type"]) == (409, "/problems/not-finished")
        await system.start_worker("ocr", slots=1)
        done = await wait_until_ended(client, accepted.json()["document_id"])
        assert (done["state"], done["title"]) == ("completed", "A heron in the reeds")
        assert "ocr_pdf" in done["completed_stages"]
        body = (await client.post("/search", json={"query": "heron reeds"})).json()
        assert [hit["document_id"] for hit in body["hits"]] == [done["document_id"]]
        (job_id,) = [
            each.id
            for each in await system.ledger.job_reads.pipeline(done["job_id"])
            if each.job_type == "summarize_content"
        ]
        assert (await system.record(job_id)).lane == "backfill"


async def _is_at_ocr(client: httpx.AsyncClient, address: str) -> bool:
    return bool((await client.get(address)).json()["current_stage"] == "ocr_pdf")


async def test_extracted_text_is_read_by_its_job_id(
    broker310: TestBroker, database_url: str, tmp_path: Path
):
    async with serving_system(broker310, database_url, tmp_path) as (system, client):
        accepted = await send(client, pdf(["one page", "and another"]), endpoint="/extract/text")
        assert accepted.status_code == 202
        early = await client.get(accepted.headers["location"])
        assert (early.status_code, early.json()["state"]) == (409, "queued")
        await system.start_worker("ingest")
        record = await system.wait_for_state(accepted.json()["job_id"], State.SUCCEEDED, timeout=60)
        assert record.result is not None
        assert "pages" not in record.result
        body = (await client.get(accepted.headers["location"])).json()
        assert [page["text"] for page in body["pages"]] == ["one page", "and another"]
        bad = await send(client, pdf()[:-300], endpoint="/extract/text")
        await system.wait_for_state(bad.json()["job_id"], State.DEAD, timeout=60)
        refused = await client.get(bad.headers["location"])
        assert (refused.status_code, refused.json()["error_type"]) == (409, "CorruptDocument")


async def test_slow_uploads_do_not_delay_other_requests(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
):
    async with serving_system(broker310, sqlite_url, tmp_path) as (_, client):
        content = sample(0).content
        slow_uploads = [
            asyncio.create_task(send(client, in_parts(content + bytes(n), 200, 0.1)))
            for n in range(5)
        ]
        times = []
        while not any(task.done() for task in slow_uploads):
            began = time.perf_counter()
            assert (await client.get("/documents")).status_code == 200
            times.append(time.perf_counter() - began)
            await asyncio.sleep(0.05)
        assert len(times) > 5
        assert statistics.median(times) < 0.5  # not each: the machine has other work
        assert {(await task).status_code for task in slow_uploads} == {202}


async def test_an_upload_that_a_full_lane_refuses_leaves_no_file_and_no_job(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
):
    lanes = lanes_with(max_length={"backfill": 1})
    async with serving_system(broker310, sqlite_url, tmp_path, lanes=lanes) as (system, client):
        first = await send(client, sample(0).content, lane="backfill")
        assert first.status_code == 202
        refused = await send(client, sample(1).content, lane="backfill")
        assert refused.status_code == 503, refused.text
        assert refused.headers["retry-after"]
        assert len(list((tmp_path / "files" / "uploads" / "incoming").iterdir())) == 1
        assert len((await system.ledger.job_reads.list_jobs()).items) == 1


async def test_an_interrupted_upload_leaves_no_file_and_no_job(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
):
    async with serving_system(broker310, sqlite_url, tmp_path) as (system, client):
        sending = asyncio.create_task(send(client, in_parts(sample(0).content * 2, 500, 0.05)))
        await asyncio.sleep(0.3)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        files = tmp_path / "files"
        await eventually(
            lambda: {each.name for each in files.rglob("*") if each.is_file()} <= {MARKER}
        )
        assert not (await system.ledger.job_reads.list_jobs()).items


async def test_a_path_is_only_read_below_the_directories_of_the_settings(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
):
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (allowed / "a.pdf").write_bytes(pdf())
    (tmp_path / "secret.pdf").write_bytes(pdf(["secret"]))
    (allowed / "link.pdf").symlink_to(tmp_path / "secret.pdf")
    async with serving_system(
        broker310, sqlite_url, tmp_path / "data", ingest_paths=(allowed,)
    ) as (system, _):
        await system.start_worker("ingest")
        good = await system.publish("hot.ingest_document", {"path": str(allowed / "a.pdf")})
        await system.wait_for_state(good, State.SUCCEEDED)
        for path in (
            tmp_path / "secret.pdf",
            allowed / ".." / "secret.pdf",
            allowed / "link.pdf",
        ):
            bad = await system.publish("hot.ingest_document", {"path": str(path)})
            record = await system.wait_for_state(bad, State.DEAD)
            assert "JOBS_INGEST_PATHS" in (record.error_message or "")


def test_the_directories_are_separated_by_colons(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JOBS_INGEST_PATHS", "/a:/b c:")
    assert Settings().ingest_paths == (Path("/a"), Path("/b c"))
    monkeypatch.setenv("JOBS_INGEST_PATHS", "none")
    assert Settings().ingest_paths == ()
