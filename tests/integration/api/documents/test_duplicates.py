"""A file that was sent before: the same content or source, at the same time, or after a failure."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.pipeline.documents.document_service import open_document_services
from switchyard.services.pipeline.documents.pipeline_runs import run_id
from switchyard.services.pipeline.documents.upload_intake import UploadMetadata
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.samples.articles import sample
from tests.integration.api.document_server import NewFileLister, in_parts, send, serving
from tests.integration.pipeline.documents import STAGES
from tests.support import made
from tests.support.eventually import eventually
from tests.support.ledgers import make_ledger
from tests.support.pdfs import encrypted, pdf


async def test_the_same_content_is_the_same_document(
    client: httpx.AsyncClient, list_new_files: NewFileLister
):
    first = await send(client, sample(4).content)
    files = list_new_files()
    again = await send(client, sample(4).content, name="other.pdf", source="elsewhere")
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["duplicate"]
    assert again.json() | {"duplicate": False} == first.json()
    assert list_new_files() == files


async def test_the_same_source_is_the_same_document(
    client: httpx.AsyncClient, list_new_files: NewFileLister
):
    first = (await send(client, sample(5).content, source="twice")).json()
    files = list_new_files()
    again = await send(client, sample(6).content, source="twice")
    assert again.status_code == 200
    assert again.json()["document_id"] == first["document_id"]
    assert list_new_files() == files


@pytest.mark.parametrize("same", ["content", "source"])
async def test_uploads_at_the_same_time_make_one_document(own_client: httpx.AsyncClient, same: str):
    contents = [sample(0 if same == "content" else number).content for number in range(4)]
    answers = await asyncio.gather(*(send(own_client, each, source="here") for each in contents))
    assert {answer.status_code for answer in answers} <= {200, 201}
    assert len({answer.json()["document_id"] for answer in answers}) == 1
    listed = (await own_client.get("/documents")).json()["documents"]
    assert len(listed) == 1
    jobs = (await own_client.get("/jobs", params={"limit": "100"})).json()["jobs"]
    stage_jobs = sorted(job["job_type"] for job in jobs if job["job_type"] != "ingest_document")
    assert stage_jobs == sorted(STAGES[1:])


async def test_a_failed_document_is_processed_again(client: httpx.AsyncClient):
    content = encrypted("twice")
    first, second = [(await send(client, content)).json() for _ in range(2)]
    assert first["document_id"] == second["document_id"]
    assert first["job_id"] != second["job_id"]


async def test_a_file_gets_the_source_of_one_that_has_failed(client: httpx.AsyncClient):
    refused = (await send(client, encrypted("no source"), source="failed")).json()
    better = await send(client, pdf(["At last."]), source="failed")
    assert better.status_code == 201, better.text
    document = better.json()
    assert (document["state"], document["source"]) == ("completed", "failed")
    assert document["document_id"] != refused["document_id"]
    failed = (await client.get(f"/documents/{refused['document_id']}")).json()
    assert (failed["state"], failed["source"]) == ("failed", None)
    for content in (pdf(["At last."]), encrypted("no source"), pdf(["Something else."])):
        again = await send(client, content, source="failed")
        assert (again.status_code, again.json()["document_id"]) == (200, document["document_id"])
    assert (await send(client, pdf(["At last."]))).status_code == 200
    assert (await send(client, encrypted("no source"))).status_code == 422


async def test_a_bad_file_from_the_same_source_at_the_same_time_fails_alone(
    client: httpx.AsyncClient,
):
    for number in range(4):
        good, bad = pdf([f"Good, {number}."]), encrypted(f"bad, {number}")
        contents = [bad, good] if number % 2 else [good, bad]
        answers = await asyncio.gather(
            *(send(client, each, source=f"s{number}") for each in contents)
        )
        answer = answers[contents.index(good)]
        assert answer.status_code in (200, 201), answer.text
        address = f"/documents/{answer.json()['document_id']}/result"
        with_text = (await client.get(address, params={"include": "text"})).json()
        assert [page["text"] for page in with_text["pages"]] == [f"Good, {number}."]


async def test_files_that_lost_their_source_become_documents_when_sent_without_it(
    client: httpx.AsyncClient,
):
    contents = [sample(number).content for number in range(4)]
    answers = await asyncio.gather(*(send(client, each, source="contested") for each in contents))
    (winner,) = {answer.json()["document_id"] for answer in answers}
    answers_one_by_one = [await send(client, content) for content in contents]
    assert sorted(answer.status_code for answer in answers_one_by_one) == [200, 201, 201, 201]
    ids = {answer.json()["document_id"] for answer in answers_one_by_one}
    assert len(ids) == 4
    assert winner in ids
    for answer in answers_one_by_one:
        document_id = answer.json()["document_id"]
        assert (await client.get(f"/documents/{document_id}")).json()["document_id"] == document_id


async def test_a_repeated_run_that_did_nothing_does_not_hide_the_failure(
    client: httpx.AsyncClient, settings: Settings
):
    """A dead letter of the first run was redriven, and died again. Before that, a second run began:
    it found the file, counted it as a duplicate and ran no stage."""
    content = encrypted("redriven")
    failed = (await send(client, content)).json()
    address = f"/documents/{failed['document_id']}"
    first = (await client.get(address)).json()
    async with await Ledger.open(settings.ledger_url) as ledger:
        ids = await ledger.system.job_ids()
        next_run = run_id(ids, failed["document_id"], after=first["job_id"])
        second_run = made.new_job(made.message(next_run))
        await ledger.jobs.record(second_run)
        await ledger.jobs.claim(made.claim(second_run.message))
        result = {"document_id": failed["document_id"], "duplicate": True}
        await ledger.jobs.finish(made.finish(job_id=second_run.message.job_id, result=result))
    status = (await client.get(address)).json()
    assert (status["state"], status["error"]) == ("failed", first["error"])
    again = await send(client, content)
    assert again.status_code == 422
    assert again.json()["job_id"] not in (failed["job_id"], second_run.message.job_id)


async def test_a_pipeline_that_the_process_did_not_finish_goes_on_with_the_next_upload(
    tmp_path: Path,
):
    settings = Settings(data_dir=tmp_path, amqp_url=None)
    await make_ledger(settings.ledger_url)
    async with await Ledger.open(settings.ledger_url) as ledger:
        async with open_document_services(settings, Registry.load(), ledger, None) as services:
            intake = services.documents.intake
            upload = await intake.receive(in_parts(sample(0).content, 10_000))
            submitting = asyncio.create_task(services.documents.submit(upload, UploadMetadata()))

            async def has_document() -> bool:
                return bool((await PipelineLedger(ledger).documents.list_documents()).items)

            await eventually(has_document)
        submitting.cancel()
        await asyncio.gather(submitting, return_exceptions=True)
        assert (await PipelineLedger(ledger).documents.list_documents()).items[
            0
        ].state != "completed"
    async with serving(settings) as client:
        answer = await send(client, sample(0).content)
        assert (answer.status_code, answer.json()["state"]) == (200, "completed"), answer.text
