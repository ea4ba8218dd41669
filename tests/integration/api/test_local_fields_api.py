"""Clients can't set fields that only the host may set, by any endpoint: paths of the host, keys of
stored files. docs/architecture.md lists the endpoints."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

import httpx
import pytest
from pydantic import BaseModel

from switchyard.services.engine.backfill.handler import BackfillHandler
from switchyard.services.engine.backfill.sources import Cursor, Item, Source, Sources, Unusable
from switchyard.services.engine.bulk.control import require_bulk
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.local_fields import LocalOnly
from switchyard.services.engine.jobs.outcomes import Done, Outcome
from switchyard.services.engine.jobs.registry import job
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.records.states import State
from switchyard.services.engine.redrive.handler import RedriveHandler
from switchyard.services.engine.wings import job_modules
from switchyard.services.pipeline.ledger import PipelineLedger
from tests.integration.api.background_api import in_background, open_api, with_own_client
from tests.support.api_server import RunningApi, problem, serving
from tests.support.brokers import TestBroker
from tests.support.system import System, open_system

SECRET = "the secret of the host"
UPLOAD = "uploads/incoming/0b0f6c1e"


class Convert(BaseModel):
    name: str = ""
    path: Annotated[str | None, LocalOnly("ask the archive")] = None


@job("convert", worker="llm", lanes=("hot", "backfill"))
async def convert(payload: Convert, ctx: JobContext) -> Outcome:
    return Done({"path": payload.path})


class FolderOptions(BaseModel):
    folder: Annotated[str, LocalOnly("store a file with POST /backfills/inputs")]


class Folder(Source):
    """A source that a user has written and that reads a directory of the host."""

    name: ClassVar[str] = "folder"
    Options = FolderOptions
    job_type: ClassVar[str | None] = "convert"

    async def items(self, cursor: Cursor | None) -> AsyncIterator[Item | Unusable]:
        for each in sorted(Path(self.options.folder).iterdir()):
            yield Item(each.name, {"name": each.name}, {})


MODULES = (*job_modules(), "tests.support.jobs", __name__)


@pytest.fixture
async def system(broker310: TestBroker, sqlite_url: str, tmp_path: Path) -> AsyncIterator[System]:
    async with open_system(
        broker310, sqlite_url, modules=MODULES, data_dir=tmp_path / "data"
    ) as opened:
        yield opened


@pytest.fixture
async def client(system: System) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(system.settings) as api:
        yield api.client


@pytest.fixture(scope="module")
def _background_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApi]:
    with in_background(open_api(tmp_path_factory.mktemp("local"), modules=MODULES)) as running:
        yield running


@pytest.fixture
async def shared_client(_background_api: RunningApi) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client that tests share in which every request is refused: no job is made."""
    async with with_own_client(_background_api) as running:
        yield running.client
        assert (await running.client.get("/jobs")).json()["jobs"] == []


@pytest.fixture
def secret(tmp_path: Path) -> str:
    file = tmp_path / "secret.txt"
    file.write_text(SECRET)
    return str(file)


async def store(client: httpx.AsyncClient, lines: list[Any]) -> dict[str, str]:
    """Store a backfill's file over HTTP; return the options that name it."""
    data = "\n".join(json.dumps(each) for each in lines)
    answer = await client.post(
        "/backfills/inputs", params={"format": "jsonl"}, files={"file": ("a.jsonl", data)}
    )
    assert answer.status_code == 201, answer.text
    return answer.json()


async def run(system: System, operation_id: str) -> Any:
    """Run an operation as a scheduler does; return its record at the end."""
    sources = Sources.load(system.settings.modules)
    runner = BulkRunner(
        system.ledger,
        [
            BackfillHandler(
                system.settings, system.registry, system.ledger, sources, lanes=system.lanes
            ),
            RedriveHandler(system.settings, system.registry, system.ledger, lanes=system.lanes),
        ],
    )
    await runner.run_one(operation_id)
    return await require_bulk(system.ledger, operation_id)


# --- jobs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job_type", "payload", "field", "remedy"),
    [
        ("ingest_document", {"path": "/etc/passwd"}, "path", "POST /documents"),
        ("ingest_document", {"key": UPLOAD}, "key", "POST /documents"),
        ("ingest_document", {"key": "results/a/result.json"}, "key", "a waiting upload"),
        ("extract_text", {"key": UPLOAD}, "key", "POST /extract/text"),
        ("extract_text", {"key": "uploads/a/input.pdf"}, "key", "a waiting upload"),
        ("convert", {"path": "/etc/passwd"}, "path", "ask the archive"),
    ],
)
async def test_a_job_is_refused_with_the_name_of_the_field(
    shared_client: httpx.AsyncClient, job_type: str, payload: Any, field: str, remedy: str
) -> None:
    for lane in ("hot", "backfill"):
        answer = await shared_client.post(
            "/jobs", json={"routing_key": f"{lane}.{job_type}", "payload": payload}
        )
        body = problem(answer, 422, "invalid")
        assert body["errors"][0]["location"] == ["body", "payload", field]
        assert remedy in body["detail"]


async def test_the_schema_says_what_a_client_may_not_set(
    shared_client: httpx.AsyncClient,
) -> None:
    schema = (await shared_client.get("/schemas/ingest_document")).json()
    local_fields = {name for name, field in schema["properties"].items() if "x-local-only" in field}
    assert local_fields == {"path", "key"}


# --- backfills --------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", ["/backfills", "/backfills/preview"])
@pytest.mark.parametrize(
    ("job_type", "payload", "field"),
    [
        ("ingest_document", {"path": "{item}"}, "path"),
        ("ingest_document", {"path": "/{rest}", "title": "t"}, "path"),
        ("ingest_document", {"key": "uploads/incoming/{rest}"}, "key"),
        ("extract_text", {"key": "uploads/incoming/{rest}"}, "key"),
        ("ingest_document", None, "path"),
        ("convert", {"path": "{item}"}, "path"),
    ],
)
async def test_no_backfill_reads_a_file_of_the_host(
    shared_client: httpx.AsyncClient,
    secret: str,
    endpoint: str,
    job_type: str,
    payload: Any,
    field: str,
) -> None:
    item = {"path": secret} if payload is None else {"item": secret, "rest": "0b0f6c1e"}
    options = await store(shared_client, [item])
    plan = {"source": "file", "options": options, "job_type": job_type, "payload": payload}
    body = problem(await shared_client.post(endpoint, json=plan), 422, "invalid")
    assert f"{field} can't be set from outside" in body["detail"]


async def test_no_file_name_of_a_document_becomes_a_path(
    system: System, client: httpx.AsyncClient, secret: str
) -> None:
    await PipelineLedger(system.ledger).documents.upsert_document(
        "0" * 64, document_id="a", filename=secret
    )
    plan = {
        "source": "documents",
        "job_type": "ingest_document",
        "payload": {"path": "{filename}"},
    }
    problem(await client.post("/backfills/preview", json=plan), 422, "invalid")
    problem(await client.post("/backfills", json=plan), 422, "invalid")
    valid_plan = {
        "source": "documents",
        "job_type": "extract_text",
        "payload": {"document_id": "{document_id}"},
    }
    assert (await client.post("/backfills/preview", json=valid_plan)).status_code == 200


async def test_an_item_with_a_local_field_is_skipped_when_the_backfill_runs(
    system: System, client: httpx.AsyncClient, secret: str
) -> None:
    items = [{"name": str(n)} for n in range(30)]
    options = await store(client, [*items, {"path": secret}, {"name": "last"}])
    plan = {"source": "file", "options": options, "job_type": "convert"}
    started = await client.post("/backfills", json=plan)
    assert started.status_code == 202, started.text
    await system.start_worker()
    ended = await run(system, started.json()["id"])
    assert (ended.state, ended.counts["published"], ended.counts["skipped"]) == ("completed", 31, 1)
    shown = (await client.get(started.headers["location"])).json()
    (note,) = shown["notes"]
    assert note.startswith("31: payload of convert: path can't be set from outside")
    assert note.endswith(": ask the archive")
    jobs = (await system.ledger.job_reads.list_jobs(limit=100)).items
    assert len(jobs) == 31
    assert all(each.state is State.SUCCEEDED for each in jobs)


async def test_options_of_a_source_can_be_local(
    shared_client: httpx.AsyncClient, tmp_path: Path
) -> None:
    plan = {"source": "folder", "options": {"folder": str(tmp_path)}}
    for endpoint in ("/backfills", "/backfills/preview"):
        body = problem(await shared_client.post(endpoint, json=plan), 422, "invalid")
        assert "folder can't be set from outside" in body["detail"]


async def test_a_client_can_not_claim_to_be_local(shared_client: httpx.AsyncClient) -> None:
    plan = {"source": "documents", "job_type": "noop", "remote": False}
    problem(await shared_client.post("/backfills", json=plan), 422, "invalid")
    problem(
        await shared_client.post("/admin/dead/redrives", json={"all": True, "remote": False}),
        422,
        "invalid",
    )


# --- redrives ---------------------------------------------------------------------------------


async def bury(system: System, job_type: str, payload: dict[str, Any]) -> str:
    """Publish a job on the host, and wait for its dead letter; return its id."""
    published = await system.jobs.publish(JobRequest(f"hot.{job_type}", payload))
    await system.wait_for_state(published.job_id, State.DEAD)
    await system.wait_for_letter(published.job_id)
    return published.job_id


async def redrive(client: httpx.AsyncClient, letter_id: str, **fields: Any) -> httpx.Response:
    return await client.post(
        "/admin/dead/redrives", json={"filter": {"ids": [letter_id]}, **fields}
    )


async def test_a_redrive_keeps_a_path_from_the_host_and_sets_none(
    system: System, client: httpx.AsyncClient, tmp_path: Path, secret: str
) -> None:
    await system.start_worker("ingest")
    file = tmp_path / "mine.txt"
    job_id = await bury(system, "ingest_document", {"path": str(file)})
    file.write_text("There now.")
    for part, values, field in (
        ("merge", {"path": secret}, "path"),
        ("payload", {"path": secret}, "path"),
        ("merge", {"path": None, "key": UPLOAD}, "key"),
    ):
        for dry_run in (True, False):
            answer = await redrive(client, job_id, change={part: values}, dry_run=dry_run)
            body = problem(answer, 422, "invalid")
            assert body["errors"][0]["location"] == ["body", "change", part, field]
            assert "POST /documents" in body["detail"]
    started = await redrive(client, job_id, change={"merge": {"title": "Mine"}})
    assert started.status_code == 202, started.text
    ended = await run(system, started.json()["id"])
    assert (ended.state, ended.counts["redriven"]) == ("completed", 1)
    record = await system.wait_for_state(job_id, State.SUCCEEDED)
    assert record.payload == {"path": str(file), "title": "Mine"}


async def test_a_field_does_not_become_a_path_by_a_change_of_the_job_type(
    system: System, client: httpx.AsyncClient, secret: str
) -> None:
    await system.start_worker()
    published = await client.post(
        "/jobs",
        json={"routing_key": "hot.scripted", "payload": {"steps": ["permanent"], "path": secret}},
    )
    assert published.status_code == 202, published.text
    job_id = published.json()["job_id"]
    await system.wait_for_letter(job_id)
    change = {"to": "hot.ingest_document", "merge": {"steps": None}}
    planned = (await redrive(client, job_id, change=change, dry_run=True)).json()
    assert (planned["redriven"], planned["invalid"]) == (0, 1)
    assert "path can't be set from outside" in planned["notes"][0]
    for from_ledger in (False, True):
        started = await redrive(client, job_id, change=change, from_ledger=from_ledger)
        ended = await run(system, started.json()["id"])
        assert ended.counts["redriven"] == 0
    assert (await system.record(job_id)).job_type == "scripted"
    assert [each.id for each in await system.letters()] == [job_id]


# --- the host ---------------------------------------------------------------------------------


async def test_local_fields_can_be_set_on_the_host(
    system: System, client: httpx.AsyncClient, secret: str
) -> None:
    """As `jobctl` does, with the ledger's and the broker's credentials."""
    from switchyard.services.engine.backfill.spec import parse_spec
    from switchyard.services.engine.backfill.starting import Backfills

    options = await store(client, [{"path": secret}])
    spec = parse_spec(
        {"source": "file", "options": options, "job_type": "convert", "remote": False}
    )
    backfills = Backfills.from_settings(system.settings, system.registry, system.ledger)
    operation = await backfills.start(spec, created_by="somebody")
    await system.start_worker()
    assert (await run(system, operation.id)).state == "completed"
    (job,) = (await system.ledger.job_reads.list_jobs()).items
    assert (await system.record(job.id)).result == {"path": secret}
