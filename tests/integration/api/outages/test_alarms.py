"""A broker with an alarm takes no messages: a job that was accepted meanwhile runs, and once."""

import asyncio
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from switchyard.cli.system.rabbitmq_node import LocalNode
from switchyard.services.engine.publishing.preparing import JobRequest, prepare
from switchyard.services.engine.publishing.publisher import Published
from switchyard.services.engine.records.job_ids import JobIds
from switchyard.services.engine.records.requests import JobFilter
from switchyard.services.engine.records.states import State
from switchyard.services.engine.wings import job_modules
from switchyard.services.pipeline.documents.pipeline_runs import run_id
from switchyard.services.pipeline.workers.stages import document_id_of
from tests.integration.api.document_server import send
from tests.integration.api.outages.answers import (
    NOOP,
    alarm,
    assert_prompt,
    fast_scheduler,
    timed_publish,
)
from tests.support.api_server import RunningApi, environment_of, problem, serving
from tests.support.brokers import TestBroker
from tests.support.jobs import journal
from tests.support.system import JOB_MODULES, System, open_system


@pytest.mark.chaos
@pytest.mark.long
async def test_a_job_refused_during_an_alarm_is_refused_at_once_and_not_recorded(
    system_on_own_node: tuple[LocalNode, System, RunningApi],
) -> None:
    node, system, api = system_on_own_node
    before = len((await system.ledger.job_reads.list_jobs()).items)
    async with alarm(node):
        pending = 0
        times: list[float] = []
        async with asyncio.timeout(30):
            while True:
                answer, took = await timed_publish(api)
                times.append(took)
                if answer.status_code == 503:
                    break
                pending += 1
        assert_prompt(times)
        problem(answer, 503, "broker-away")
        assert len((await system.ledger.job_reads.list_jobs()).items) == before + pending


@pytest.mark.chaos
@pytest.mark.long
async def test_a_job_accepted_during_an_alarm_is_a_duplicate_when_sent_again_and_runs_once(
    own_node: Callable[..., LocalNode], database_url: str, tmp_path: Path
) -> None:
    node = own_node()
    broker = TestBroker("3.10", "classic", "/", node)
    async with (
        open_system(
            broker, database_url, data_dir=tmp_path, modules=(*job_modules(), *JOB_MODULES)
        ) as system,
        serving(system.settings) as api,
        serving(system.settings) as other_api,
    ):
        assert (await api.client.post("/jobs", json=NOOP)).status_code == 202
        body = {"routing_key": "hot.noop", "payload": {"n": 7}}
        key = {"Idempotency-Key": "k"}
        async with alarm(node):
            first = await api.client.post("/jobs", json=body, headers=key)
            assert (first.status_code, first.json()["state"]) == (202, "pending"), first.text
            job_id = first.json()["job_id"]
            problem(await api.client.post("/jobs", json=body), 503, "broker-away")
            for each_api in (api, api, other_api):
                again = await each_api.client.post("/jobs", json=body, headers=key)
                assert again.status_code == 202, again.text
                repeated = again.json()
                assert (repeated["job_id"], repeated["state"]) == (job_id, "pending")
                assert repeated["duplicate"]
            command = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "switchyard.cli.main", "publish", "hot.noop", "--json"),
                *("--payload", '{"n": 7}', "--key", "k"),
                env=environment_of(system.settings),
                stdout=asyncio.subprocess.PIPE,
            )
            printed, _ = await command.communicate()
            assert (command.returncode, json.loads(printed)["job_id"]) == (0, job_id)
            batch = await system.jobs.publish_many(
                [JobRequest("hot.noop", {"n": 7}, idempotency_key="k")] * 2
            )
            assert [each.duplicate for each in batch if isinstance(each, Published)] == [True] * 2

            text = b"# The tide\n\nIt rises twice a day, and nobody is asked."
            sent = [await send(api.client, text, name="tide.md") for _ in range(2)]
            codes = [each.status_code for each in sent]
            listed = (
                await system.ledger.job_reads.list_jobs(JobFilter(job_type="ingest_document"))
            ).items
            incoming = list((tmp_path / "files" / "uploads" / "incoming").iterdir())
            # The refused upload has left neither a job nor a file.
            assert (codes, listed, incoming) == ([503, 503], (), [])
            ids = await system.ledger.system.job_ids()
            document = prepare_pending_upload(tmp_path, text, ids)
            pending_job = prepare(system.registry, document)
            await system.ledger.jobs.record(pending_job)
            again = await send(api.client, text, name="tide.md")
            assert (again.status_code, again.json()["duplicate"]) == (200, True), again.text
            # Only the file of the accepted upload is there.
            (upload,) = (tmp_path / "files" / "uploads" / "incoming").iterdir()
            assert upload.name == "accepted"
        scheduler = await fast_scheduler(system)
        scheduling = asyncio.create_task(scheduler.run())
        await system.start_worker("llm")
        await system.start_worker("ingest")
        await system.wait_for_state(job_id, State.SUCCEEDED, timeout=60)
        await system.wait_for_state(pending_job.message.job_id, State.SUCCEEDED, timeout=60)
        scheduler.stop()
        await scheduling
        await system.stop_workers()
        assert journal.runs(job_id) == 1


def prepare_pending_upload(directory: Path, content: bytes, ids: JobIds) -> JobRequest:
    """Return the job of an upload that was accepted and that the broker has still to confirm."""
    (directory / "files" / "uploads" / "incoming" / "accepted").write_bytes(content)
    document_id = document_id_of(hashlib.sha256(content).hexdigest())
    return JobRequest(
        "hot.ingest_document",
        {"key": "uploads/incoming/accepted", "filename": "tide.md"},
        source="api",
        job_id=run_id(ids, document_id),
    )
