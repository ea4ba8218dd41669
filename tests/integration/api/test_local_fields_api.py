"""Every way from HTTP to a payload, on a real broker: no file of the host, no file of another
document, no word of arXiv's that a client has made up. docs/architecture.md lists the doors."""

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
    where: Annotated[str | None, LocalOnly("ask the archive")] = None


@job("convert", worker="llm", lanes=("hot", "backfill"))
async def convert(payload: Convert, ctx: JobContext) -> Outcome:
    return Done({"where": payload.where})


class FolderOptions(BaseModel):
    folder: Annotated[str, LocalOnly("store a file with POST /backfills/inputs")]


class Folder(Source):
    """A source of somebody's own that reads the host."""

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
def _standing_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApi]:
    with in_background(open_api(tmp_path_factory.mktemp("local"), modules=MODULES)) as running:
        yield running


@pytest.fixture
async def shared_client(_standing_client: RunningApi) -> AsyncIterator[httpx.AsyncClient]:
    """Shared by the tests where all is refused: there is never a job."""
    async with with_own_client(_standing_client) as running:
        yield running.client
        assert (await running.client.get("/jobs")).json()["jobs"] == []


@pytest.fixture
def secret(tmp_path: Path) -> str:
    file = tmp_path / "secret.txt"
    file.write_text(SECRET)
    return str(file)


async def store(client: httpx.AsyncClient, lines: list[Any]) -> dict[str, str]:
    """Store a backfill's file over HTTP; the options that name it."""
    data = "\n".join(json.dumps(each) for each in lines)
    answer = await client.post(
        "/backfills/inputs", params={"format": "jsonl"}, files={"file": ("a.jsonl", data)}
    )
    assert answer.status_code == 201, answer.text
    return answer.json()


async def run(system: System, operation_id: str) -> Any:
    """Run an operation as a scheduler does; its record at the end."""
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
    ("job_type", "payload", "field", "instead"),
    [
        ("ingest_document", {"path": "/etc/passwd"}, "path", "POST /documents"),
        ("ingest_document", {"key": UPLOAD}, "key", "POST /documents"),
        ("ingest_document", {"key": "results/a/result.json"}, "key", "a waiting upload"),
        ("extract_text", {"key": UPLOAD}, "key", "POST /extract/text"),
        ("extract_text", {"key": "uploads/a/input.pdf"}, "key", "a waiting upload"),
        ("convert", {"where": "/etc/passwd"}, "where", "ask the archive"),
    ],
)
async def test_a_job_is_refused_with_the_name_of_the_field(
    shared_client: httpx.AsyncClient, job_type: str, payload: Any, field: str, instead: str
) -> None:
    for lane in ("hot", "backfill"):
        answer = await shared_client.post(
            "/jobs", json={"routing_key": f"{lane}.{job_type}", "payload": payload}
        )
        found = problem(answer, 422, "invalid")
        assert found["errors"][0]["location"] == ["body", "payload", field]
        assert instead in found["detail"]


async def test_the_schema_says_what_a_client_may_not_set(
    shared_client: httpx.AsyncClient,
) -> None:
    schema = (await shared_client.get("/schemas/ingest_document")).json()
    marked = {name for name, at in schema["properties"].items() if "x-local-only" in at}
    assert marked == {"path", "key"}


# --- backfills --------------------------------------------------------------------------------


@pytest.mark.parametrize("door", ["/backfills", "/backfills/preview"])
@pytest.mark.parametrize(
    ("job_type", "payload", "field"),
    [
        ("ingest_document", {"path": "{item}"}, "path"),
        ("ingest_document", {"path": "/{rest}", "title": "t"}, "path"),
        ("ingest_document", {"key": "uploads/incoming/{rest}"}, "key"),
        ("extract_text", {"key": "uploads/incoming/{rest}"}, "key"),
        ("ingest_document", None, "path"),
        ("convert", {"where": "{item}"}, "where"),
    ],
)
async def test_no_backfill_reads_a_file_of_the_host(
    shared_client: httpx.AsyncClient,
    secret: str,
    door: str,
    job_type: str,
    payload: Any,
    field: str,
) -> None:
    item = {"path": secret} if payload is None else {"item": secret, "rest": "0b0f6c1e"}
    options = await store(shared_client, [item])
    plan = {"source": "file", "options": options, "job_type": job_type, "payload": payload}
    found = problem(await shared_client.post(door, json=plan), 422, "invalid")
    assert f"{field} can't be set from outside" in found["detail"]


async def test_no_name_of_a_document_becomes_a_path(
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
    good = {
        "source": "documents",
        "job_type": "extract_text",
        "payload": {"document_id": "{document_id}"},
    }
    assert (await client.post("/backfills/preview", json=good)).status_code == 200


async def test_an_offending_item_is_refused_when_the_backfill_runs(
    system: System, client: httpx.AsyncClient, secret: str
) -> None:
    items = [{"name": str(n)} for n in range(30)]
    options = await store(client, [*items, {"where": secret}, {"name": "last"}])
    plan = {"source": "file", "options": options, "job_type": "convert"}
    started = await client.post("/backfills", json=plan)
    assert started.status_code == 202, started.text
    await system.start_worker()
    ended = await run(system, started.json()["id"])
    assert (ended.state, ended.counts["published"], ended.counts["skipped"]) == ("completed", 31, 1)
    shown = (await client.get(started.headers["location"])).json()
    (note,) = shown["notes"]
    assert note.startswith("31: payload of convert: where can't be set from outside")
    assert note.endswith(": ask the archive")
    jobs = (await system.ledger.job_reads.list_jobs(limit=100)).items
    assert len(jobs) == 31
    assert all(each.state is State.SUCCEEDED for each in jobs)


async def test_options_of_a_source_can_be_local_too(
    shared_client: httpx.AsyncClient, tmp_path: Path
) -> None:
    plan = {"source": "folder", "options": {"folder": str(tmp_path)}}
    for door in ("/backfills", "/backfills/preview"):
        found = problem(await shared_client.post(door, json=plan), 422, "invalid")
        assert "folder can't be set from outside" in found["detail"]


async def test_nobody_outside_says_that_he_is_not(shared_client: httpx.AsyncClient) -> None:
    plan = {"source": "documents", "job_type": "noop", "remote": False}
    problem(await shared_client.post("/backfills", json=plan), 422, "invalid")
    problem(
        await shared_client.post("/admin/dead/redrives", json={"all": True, "remote": False}),
        422,
        "invalid",
    )


# --- redrives ---------------------------------------------------------------------------------


async def bury(system: System, job_type: str, payload: dict[str, Any]) -> str:
    """A dead letter of a job that was published on the host."""
    published = await system.jobs.publish(JobRequest(f"hot.{job_type}", payload))
    await system.wait_for_state(published.job_id, State.DEAD)
    await system.wait_for_letter(published.job_id)
    return published.job_id


async def redrive(client: httpx.AsyncClient, letter_id: str, **fields: Any) -> httpx.Response:
    return await client.post(
        "/admin/dead/redrives", json={"filter": {"ids": [letter_id]}, **fields}
    )


async def test_a_redrive_leaves_the_path_that_the_host_has_given(
    system: System, client: httpx.AsyncClient, tmp_path: Path, secret: str
) -> None:
    await system.start_worker("ingest")
    mine = tmp_path / "mine.txt"
    dead = await bury(system, "ingest_document", {"path": str(mine)})
    mine.write_text("There now.")
    for part, values, field in (
        ("merge", {"path": secret}, "path"),
        ("payload", {"path": secret}, "path"),
        ("merge", {"path": None, "key": UPLOAD}, "key"),
    ):
        for dry_run in (True, False):
            answer = await redrive(client, dead, change={part: values}, dry_run=dry_run)
            found = problem(answer, 422, "invalid")
            assert found["errors"][0]["location"] == ["body", "change", part, field]
            assert "POST /documents" in found["detail"]
    started = await redrive(client, dead, change={"merge": {"title": "Mine"}})
    assert started.status_code == 202, started.text
    ended = await run(system, started.json()["id"])
    assert (ended.state, ended.counts["redriven"]) == ("completed", 1)
    record = await system.wait_for_state(dead, State.SUCCEEDED)
    assert record.payload == {"path": str(mine), "title": "Mine"}


async def test_a_harmless_field_does_not_become_a_path_by_way_of_another_type(
    system: System, client: httpx.AsyncClient, secret: str
) -> None:
    await system.start_worker()
    published = await client.post(
        "/jobs",
        json={"routing_key": "hot.scripted", "payload": {"steps": ["permanent"], "path": secret}},
    )
    assert published.status_code == 202, published.text
    dead = published.json()["job_id"]
    await system.wait_for_letter(dead)
    change = {"to": "hot.ingest_document", "merge": {"steps": None}}
    planned = (await redrive(client, dead, change=change, dry_run=True)).json()
    assert (planned["redriven"], planned["invalid"]) == (0, 1)
    assert "path can't be set from outside" in planned["notes"][0]
    for from_ledger in (False, True):
        started = await redrive(client, dead, change=change, from_ledger=from_ledger)
        ended = await run(system, started.json()["id"])
        assert ended.counts["redriven"] == 0
    assert (await system.record(dead)).job_type == "scripted"
    assert [each.id for each in await system.letters()] == [dead]


# --- the host ---------------------------------------------------------------------------------


async def test_on_the_host_all_of_it_works(
    system: System, client: httpx.AsyncClient, secret: str
) -> None:
    """What `jobctl` does: the same spec, begun with the ledger's and the broker's credentials."""
    from switchyard.services.engine.backfill.spec import parse_spec
    from switchyard.services.engine.backfill.starting import Backfills

    options = await store(client, [{"where": secret}])
    spec = parse_spec(
        {"source": "file", "options": options, "job_type": "convert", "remote": False}
    )
    backfills = Backfills.from_settings(system.settings, system.registry, system.ledger)
    operation = await backfills.start(spec, created_by="somebody")
    await system.start_worker()
    assert (await run(system, operation.id)).state == "completed"
    (done,) = (await system.ledger.job_reads.list_jobs()).items
    assert (await system.record(done.id)).result == {"where": secret}
