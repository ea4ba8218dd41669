"""`notify_url` over HTTP: for jobs, and for documents, whether new or sent before."""

from pathlib import Path

from pydantic import SecretStr

from switchyard.services.engine.wings import job_modules
from tests.integration.api.document_server import WORKERS, send, serving, wait_until_ended
from tests.support.brokers import TestBroker
from tests.support.receiver import SECRET, serve_receiver
from tests.support.system import open_system

MARKDOWN = b"# Tides\n\nThe tide rises because the moon pulls at the sea, twice in a day.\n"


async def test_each_sender_of_a_document_is_notified_of_its_end(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        serve_receiver() as receiver,
        open_system(
            broker310,
            sqlite_url,
            modules=job_modules(),
            data_dir=tmp_path,
            notify_secret=SecretStr(SECRET),
            notify_hosts=(receiver.place,),
        ) as system,
        serving(system.settings) as client,
    ):
        await system.start_worker(*WORKERS)
        sent = await send(client, MARKDOWN, name="tides.md", notify_url=receiver.url)
        assert sent.status_code == 202, sent.text
        (notice,) = await receiver.told()
        document_id = sent.json()["document_id"]
        assert (notice["state"], notice["document_id"]) == ("completed", document_id)
        assert notice["job_id"] == sent.json()["job_id"]
        assert (await wait_until_ended(client, document_id))["state"] == "completed"
        again = await send(client, MARKDOWN, name="again.md", notify_url=receiver.url)
        assert again.status_code == 200
        first, second = await receiver.told(2)
        assert (second["state"], second["document_id"]) == ("completed", document_id)
        assert second["delivery"] != first["delivery"]


async def test_notices_need_a_secret_and_can_not_be_published_as_jobs(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    job = {"routing_key": "hot.link_content", "payload": {"document_id": "doc-1"}}
    url = "https://receiver.example/told"
    async with (
        open_system(broker310, sqlite_url, modules=job_modules(), data_dir=tmp_path) as system,
        serving(system.settings) as client,
    ):
        refused = await client.post("/jobs", json={**job, "notify_url": url})
        assert refused.status_code == 422
        assert "JOBS_NOTIFY_SECRET" in refused.text
        sent = await send(client, MARKDOWN, name="tides.md", notify_url=url)
        assert sent.status_code == 422
        notice_job = {
            "routing_key": "maintenance.send_notice",
            "payload": {"url": url, "job_id": "x"},
        }
        forged = await client.post("/jobs", json=notice_job)
        assert forged.status_code == 422
        assert "notify_url" in forged.text


async def test_an_invalid_address_is_refused_by_every_endpoint(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    job = {"routing_key": "hot.link_content", "payload": {"document_id": "doc-1"}}
    backfill = {"source": "documents", "job_type": "link_content", "dry_run": True}
    async with (
        open_system(
            broker310,
            sqlite_url,
            modules=job_modules(),
            data_dir=tmp_path,
            notify_secret=SecretStr(SECRET),
        ) as system,
        serving(system.settings) as client,
    ):
        for url in ("http://xn--/", "http://xn--a/x", "http://\u0378.com/", "http://:80/", "x"):
            answers = [
                await client.post("/jobs", json={**job, "notify_url": url}),
                await client.post("/backfills", json={**backfill, "notify_url": url}),
                await send(client, MARKDOWN, name="tides.md", notify_url=url),
            ]
            assert [each.status_code for each in answers] == [422] * 3, (url, answers)
