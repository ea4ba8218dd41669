"""Values that no calendar or database can hold are refused, or shown where they are stored."""

import base64
import itertools
import json
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from pydantic import ValidationError
from sqlalchemy import Connection, TextClause, text

from switchyard.services.engine.dead.indexing import index_waiting
from switchyard.services.engine.records.requests import MAX_SOURCE
from switchyard.services.engine.records.states import State
from switchyard.services.engine.scheduler.scheduler import Scheduler
from switchyard.services.engine.wings import job_modules
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.workers.ingest.documents import IngestDocument
from tests.support.api_server import RunningApi, environment_of, problem, serving
from tests.support.brokers import TestBroker
from tests.support.commands import commands
from tests.support.system import JOB_MODULES, System, open_system

EXTREME_TIMES = [
    "9999-12-31T23:59:59-01:00",
    "9999-12-31T23:59:59Z",
    "0001-01-01T00:00:00+01:00",
]
"""Valid times that are beyond the calendar in some time zone."""
BAD_CURSORS = [
    '[1.0, "\\ud800"]',
    '[1.0, "\\u0000"]',
    '[NaN, "a"]',
    '[Infinity, "a"]',
    f'[1{"0" * 310}, "a"]',
    '[null, "a"]',
    "[[[[1]]]]",
    '{"a": 1}',
]
BAD_TEXTS = ["%00", "a%00b", "%ED%A0%80", "%FF", "\\ud800", "%F0%9F%9A%82", "%0A%1B[2J"]
"""NUL, surrogates, invalid UTF-8 and control characters, encoded as in a URL."""


@pytest.fixture
async def both(
    broker310: TestBroker, database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[System, RunningApi]]:
    """Yield a system and its API, on each kind of database."""
    data_dir = tmp_path_factory.mktemp("data")
    async with (
        open_system(
            broker310, database_url, modules=(*job_modules(), *JOB_MODULES), data_dir=data_dir
        ) as system,
        serving(system.settings) as api,
    ):
        yield system, api


def jobctl(system: System, *arguments: str, cwd: Path) -> Any:
    """Run a command; return what it prints as JSON."""
    env = environment_of(system.settings)
    result = commands().run(list(arguments), env=env, cwd=cwd, stdin="", timeout=60)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


async def write(system: System, statement: TextClause, values: dict[str, Any]) -> None:
    """Execute a statement in the ledger, to store what an older version may have stored."""

    def execute(connection: Connection) -> None:
        connection.execute(statement, values)

    await system.ledger.core.database.write(execute)


def encoded(cursor: str) -> str:
    return base64.urlsafe_b64encode(cursor.encode()).decode()


async def test_a_time_beyond_the_calendar_is_refused_and_listings_work(
    both: tuple[System, RunningApi], tmp_path: Path
) -> None:
    system, api = both
    await system.start_worker("llm")
    for moment, field in itertools.product(EXTREME_TIMES, ("expires_at", "run_at")):
        answer = await api.client.post("/jobs", json={"routing_key": "hot.noop", field: moment})
        detail = problem(answer, 422, "invalid")["detail"]
        assert "between the years 1 and 9998" in detail
        problem(await api.client.get("/jobs", params={"since": moment}), 422, "invalid")
    for index, (moment, field) in enumerate(
        itertools.product(EXTREME_TIMES, ("created_at", "queued_at", "expires_at", "not_before"))
    ):
        body = {"job_id": f"odd-{index}", "job_type": "noop", "payload": {"index": index}}
        metadata = {"created_at": "2026-01-05T09:00:00Z", field: moment}
        raw = json.dumps({**body, "metadata": metadata}).encode()
        await system.publish_raw("hot.noop", raw)
        await system.publish_raw("hot.unknown_to_all", raw)  # becomes a dead letter at once
    await system.wait_for_state(await system.publish("hot.noop"), State.SUCCEEDED)
    await system.wait_until_ready("jobs.dead", 24)
    await index_waiting(system.settings, system.ledger, system.registry)

    assert len((await api.client.get("/jobs")).json()["jobs"]) == 1
    assert len((await api.client.get("/admin/dead")).json()["dead_letters"]) == 12
    assert len(jobctl(system, "jobs", "list", "--json", cwd=tmp_path)) == 1
    assert len(jobctl(system, "dead", "list", "--json", cwd=tmp_path)) == 12


async def test_a_forged_time_of_death_counts_as_now(
    both: tuple[System, RunningApi], tmp_path: Path
) -> None:
    system, api = both
    forged = [*EXTREME_TIMES, "now", "", "2026-01-05", "-1"]
    before = datetime.now(UTC)
    async with system.channel() as channel:
        exchange = await channel.get_exchange("jobs.dlx", ensure=False)
        for index, moment in enumerate(forged):
            body = json.dumps({"job_id": f"dead-{index}", "job_type": "noop", "payload": {}})
            headers: Any = {
                "x-dead-reason": "exhausted",
                "x-dead-dead-at": moment,
                "x-dead-attempts": -(2**62) if index else 2**62,
            }
            await exchange.publish(
                aio_pika.Message(body.encode(), delivery_mode=2, headers=headers), "hot.noop"
            )
    await system.wait_until_ready("jobs.dead", len(forged))
    await index_waiting(system.settings, system.ledger, system.registry)

    letters = (await api.client.get("/admin/dead")).json()["dead_letters"]
    assert len(letters) == len(forged)
    assert all(datetime.fromisoformat(each["dead_at"]) >= before for each in letters)
    assert len(jobctl(system, "dead", "list", "--json", cwd=tmp_path)) == len(forged)
    assert (await api.client.get("/admin/dead/groups")).status_code == 200
    shown = jobctl(system, "dead", "show", "dead-0", "--json", cwd=tmp_path)
    assert shown["id"] == "dead-0"


async def test_a_stored_job_with_extreme_times_is_shown_and_runs(
    both: tuple[System, RunningApi], tmp_path: Path
) -> None:
    system, api = both
    job_id = await system.publish("hot.noop", delay=3600)
    moment = datetime.fromisoformat(EXTREME_TIMES[0]).timestamp()
    metadata = json.dumps(
        {"metadata": {"created_at": EXTREME_TIMES[0], "expires_at": EXTREME_TIMES[0]}}
    )
    for seconds in (moment, -1e18, 1e300):
        values = {"at": seconds, "metadata": metadata, "id": job_id}
        statement = text(
            "UPDATE jobs SET expires_at = :at, created_at = :at, run_at = 1, metadata = :metadata "
            "WHERE id = :id"
        )
        await write(system, statement, values)
        (shown,) = (await api.client.get("/jobs")).json()["jobs"]
        assert shown["expires_at"][:4] == ("0001" if seconds < 0 else "9998")
        (listed,) = jobctl(system, "jobs", "list", "--json", cwd=tmp_path)
        assert listed["expires_at"][:4] == ("0001" if seconds < 0 else "9998")
        assert (await api.client.get(f"/jobs/{job_id}")).status_code == 200
        env = environment_of(system.settings)
        result = commands().run(
            ["jobs", "show", job_id], env=env, cwd=tmp_path, stdin="", timeout=60
        )
        assert result.returncode == 0, result.stderr
    scheduler = Scheduler(system.settings, system.registry, system.ledger)
    assert (await scheduler.turn()).scheduled == 1
    await scheduler.close()
    assert await system.state(job_id) is State.QUEUED


async def test_no_text_in_a_url_makes_the_service_fail(
    both: tuple[System, RunningApi],
) -> None:
    _, api = both
    listings = {
        "/jobs": ("state", "lane", "job_type", "worker", "source", "parent_id", "since", "limit"),
        "/documents": ("state", "source", "limit"),
        "/admin/dead": ("state", "reason", "job_type", "lane", "error_type"),
        "/admin/dead/groups": ("state",),
        "/admin/dead/redrives": ("state",),
        "/backfills": ("state",),
    }
    for path, names in listings.items():
        for cursor in BAD_CURSORS:
            answer = await api.client.get(path, params={"cursor": encoded(cursor)})
            if path != "/admin/dead/groups":
                problem(answer, 422, "invalid")
        for name, value in itertools.product(names, BAD_TEXTS):
            answer = await api.client.get(f"{path}?{name}={value}")
            assert answer.status_code < 500, (path, name, value, answer.text)
    paths = [
        "/jobs/{}", "/jobs/{}/status", "/jobs/{}/events", "/documents/{}", "/documents/{}/result",
        "/admin/dead/{}", "/admin/dead/redrives/{}", "/backfills/{}", "/schemas/{}",
        "/problems/{}", "/extract/text/{}",
    ]  # fmt: skip
    for path, value in itertools.product(paths, BAD_TEXTS):
        answer = await api.client.get(path.format(value))
        assert 400 <= answer.status_code < 500, (path, value, answer.text)


async def test_no_text_in_a_body_makes_the_service_fail(both: tuple[System, RunningApi]) -> None:
    _, api = both
    bad_texts = [r"\ud800", r"\u0000", r"a\u0000b\udfff"]
    bodies = {
        "/jobs": [
            '{"routing_key": "hot.noop", "payload": {"a": "%s"}}',
            '{"routing_key": "hot.noop", "payload": {"%s": 1}}',
            '{"routing_key": "hot.noop", "source": "%s"}',
            '{"routing_key": "%s"}',
        ],
        "/search": [
            '{"query": "%s", "mode": "keyword"}',
            '{"query": "a", "mode": "keyword", "filters": {"source": "%s"}}',
            '{"query": "a", "mode": "keyword", "filters": {"document_ids": ["%s"]}}',
        ],
        "/admin/dead/redrives": [
            '{"filter": {"ids": ["%s"]}}',
            '{"filter": {"ids": ["%s"]}, "dry_run": true}',
            '{"filter": {"error_type": "%s"}}',
            '{"filter": {"operation": "%s"}}',
            '{"all": true, "reason": "%s"}',
            '{"all": true, "change": {"merge": {"a": "%s"}}}',
            '{"all": true, "change": {"payload": {"%s": 1}}}',
        ],
        "/backfills": [
            '{"source": "documents", "options": {"source": "%s"}, "job_type": "noop"}',
            '{"source": "documents", "options": {"state": "%s"}, "job_type": "noop"}',
            '{"source": "documents", "options": {"%s": 1}, "job_type": "noop"}',
            '{"source": "documents", "payload": {"a": "%s"}, "job_type": "noop"}',
            '{"source": "file", "options": {"key": "%s"}}',
            '{"source": "documents", "reason": "%s", "job_type": "noop"}',
        ],
        "/backfills/preview": [
            '{"source": "documents", "options": {"source": "%s"}, "job_type": "noop"}',
            '{"source": "documents", "options": {"media_type": "%s"}, "job_type": "noop"}',
        ],
    }  # fmt: skip
    for path, templates in bodies.items():
        for template, value in itertools.product(templates, bad_texts):
            content = (template % value).encode()
            answer = await api.client.post(
                path, content=content, headers={"Content-Type": "application/json"}
            )
            assert answer.status_code < 500, (path, content, answer.text)
    for path in ("/jobs", "/admin/dead/redrives", "/backfills"):
        assert (await api.client.get(path)).status_code == 200


async def test_no_file_name_makes_the_service_fail(both: tuple[System, RunningApi]) -> None:
    _, api = both
    for index, name in enumerate((b"a\x00b.md", b"\xed\xa0\x80.md", b"\xff.md", b"\x1b[2J.md")):
        for field in (b"filename", b"title", b"source"):
            filename = name if field == b"filename" else b"a.md"
            part = (
                b'--b\r\nContent-Disposition: form-data; name="file"; filename="'
                + filename + b'"\r\n\r\n# Text %d %s\r\n' % (index, field)
            )  # fmt: skip
            if field != b"filename":
                part += b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (
                    field,
                    name,
                )
            answer = await api.client.post(
                "/documents",
                content=part + b"--b--\r\n",
                headers={"Content-Type": "multipart/form-data; boundary=b"},
            )
            assert answer.status_code < 500, (name, field, answer.text)
    assert (await api.client.get("/documents")).status_code == 200


async def test_the_longest_accepted_source_fits_into_every_database(
    both: tuple[System, RunningApi],
) -> None:
    system, api = both
    generator = random.Random(1)
    longest = "".join(chr(generator.randrange(0x20000, 0x2A6DF)) for _ in range(MAX_SOURCE // 4))
    document, _ = await PipelineLedger(system.ledger).documents.upsert_document(
        "0" * 64, source=longest
    )
    assert document.source == longest
    for source, status in ((longest, 202), (longest + "x", 422)):
        answer = await api.client.post(
            "/documents", files={"file": ("a.md", source.encode())}, data={"source": source}
        )
        assert answer.status_code == status, answer.text
    IngestDocument(path="/a", source=longest)
    with pytest.raises(ValidationError, match="more than 2,000 bytes"):
        IngestDocument(path="/a", source=longest + "x")


async def test_stored_values_that_are_no_json_are_shown(
    both: tuple[System, RunningApi], tmp_path: Path
) -> None:
    system, api = both
    job_id = await system.publish("hot.noop", delay=3600)
    result = json.dumps({"half": "\ud800", "n": float("inf")})
    payload = json.dumps({"n": float("nan"), "s": "a\x00b"})
    statement = text("UPDATE jobs SET result = :result, payload = :payload WHERE id = :id")
    values = {"result": result, "payload": payload, "id": job_id}
    await write(system, statement, values)
    shown = (await api.client.get(f"/jobs/{job_id}")).json()
    assert shown["result"] == {"half": "\ud800", "n": None}
    assert shown["payload"] == {"n": None, "s": "a\x00b"}
    listed = jobctl(system, "jobs", "show", job_id, "--json", cwd=tmp_path)
    assert listed["result"]["half"] == "\ud800"
    env = environment_of(system.settings)
    result_of_show = commands().run(
        ["jobs", "show", job_id], env=env, cwd=tmp_path, stdin="", timeout=60
    )
    assert result_of_show.returncode == 0, result_of_show.stderr
