"""The dashboard with a million jobs in PostgreSQL: lists, the first paint, what open pages cost.

The database is filled by one statement for each table. Times are those of a client on loopback, the
middle one of several after the first; the reading that pages share (`readings.py`) is warm.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
import httpx

from benchmarks.common import environment
from benchmarks.http_api import MODULES, Server, serving
from benchmarks.measurements import Measurement, Row
from benchmarks.stage import Stage
from tests.support.browser import opened_browser

TYPES = 12
READS = 9
OPEN_PAGES, OPEN_FOR = 50, 30.0
"""Pages that are open at once, each another, and for how many seconds."""
LOADS = 5
ASSETS = ("dashboard.css", "dashboard.js", "icon.svg")

_JOBS = """
INSERT INTO jobs (id, job_type, lane, routing_key, worker, priority, state, source, pipeline,
    attempts, max_attempts, redrives, crashes, created_at, queued_at, started_at, finished_at,
    updated_at, reason, error_type, error_message, operation_id, metadata, payload, result)
SELECT md5(n::text)::uuid::text, 'type_' || n % :types, lane, lane || '.type_' || n % :types,
    'llm', 5, state, 'source-' || n % 40,
    CASE WHEN n % 5 > 0 THEN md5((n - n % 5)::text)::uuid::text END,
    1, 3, 0, 0, at, at, CASE WHEN state <> 'queued' THEN at + 1 END,
    CASE WHEN state IN ('succeeded', 'dead', 'cancelled') THEN at + 1 + n % 30 END, at + 1 + n % 30,
    CASE WHEN state = 'dead' THEN 'failed' END,
    CASE WHEN state IN ('dead', 'retrying') THEN 'Error' || n % 20 END,
    CASE WHEN state IN ('dead', 'retrying') THEN 'it failed at step ' || n % 97 END,
    CASE WHEN n % 10 = 0 THEN 'backfill-000000000' || n % 3 END,
    '{}', '{"n": ' || n || ', "text": "' || repeat('x', 200) || '"}',
    CASE WHEN state = 'succeeded' THEN '{"n": ' || n || '}' END
FROM (SELECT n, :now - (:jobs - n) * 0.6 AS at,
    (ARRAY['hot', 'hot', 'vlm_ocr', 'maintenance', 'backfill'])[n % 5 + 1] AS lane,
    CASE WHEN n % 50 = 7 THEN 'dead' WHEN n % 97 = 5 THEN 'cancelled'
        WHEN n > :jobs - 100 THEN 'running' WHEN n % 41 = 3 THEN 'queued'
        WHEN n % 1009 = 8 THEN 'retrying' ELSE 'succeeded' END AS state
    FROM generate_series(1, :jobs) AS n) AS made
"""
_LETTERS = """
INSERT INTO dead_letters (id, job_id, job_type, lane, routing_key, reason, error_type,
    error_message, traceback, attempts, redrives, worker, first_at, dead_at, copies, state,
    updated_at, fingerprint, headers, body)
SELECT id, id, job_type, lane, routing_key, reason, error_type, error_message, repeat('at x ', 100),
    1, 0, worker, created_at, finished_at, 1, 'waiting', finished_at,
    substr(md5(job_type || error_type), 1, 10), '{}', convert_to(payload, 'UTF8')
FROM jobs WHERE state = 'dead'
"""
_TAGS = """
INSERT INTO job_tags (job_id, name, value, created_at)
SELECT id, 'team', 'team-' || length(payload) % 7 || substr(id, 1, 1), created_at
FROM jobs WHERE substr(id, 2, 1) < '4'
"""
_DOCUMENTS = """
INSERT INTO documents (id, content_hash, source, filename, title, media_type, size_bytes, pipeline,
    state, completed_stages, created_at, updated_at)
SELECT 'doc-' || n, md5(n::text), 'https://example.org/' || n, n || '.pdf', 'Document ' || n,
    'application/pdf', 1000 + n, NULL, 'completed', '[]', :now - (:jobs - n), :now - (:jobs - n)
FROM generate_series(1, :jobs / 10) AS n
"""


async def fill(url: str, jobs: int) -> None:
    """Write that many jobs, their letters, tags and a tenth as many documents."""
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        # As the database does it by itself, though not at once.
        for statement in (_JOBS, _LETTERS, _TAGS, _DOCUMENTS, "VACUUM ANALYZE"):
            for name, value in (("now", time.time()), ("jobs", jobs), ("types", TYPES)):
                statement = re.sub(rf"(?<!:):{name}\b", str(value), statement)
            await connection.execute(statement)
    finally:
        await connection.close()


def lists(client: httpx.Client) -> dict[str, str]:
    """Return the addresses of what is measured, by what it is called."""
    job_ids = [each["job_id"] for each in client.get("/jobs", params={"limit": 1}).json()["jobs"]]
    group = client.get("/dashboard/dead").text.partition("/dashboard/dead/groups/")[2][:10]
    return {
        "overview": "",
        "jobs": "/jobs",
        "jobs of a state": "/jobs?state=dead",
        "jobs of a lane and state": "/jobs?state=queued&lane=backfill",
        "jobs of a type": "/jobs?type=type_3",
        "jobs of a type that is not there": "/jobs?type=nobodys",
        "jobs of a source in an hour": "/jobs?source=source-7&period=1h",
        "jobs with a tag": "/jobs?tag=team%3Dteam-3a",
        "jobs by their error": "/jobs?error=step%2042",
        "jobs that ran long": "/jobs?slower=29",
        "a job": f"/jobs/{job_ids[0]}",
        "dead letters": "/dead",
        "dead letters of a cause": f"/dead/groups/{group}",
        "backfills": "/backfills",
        "workers": "/workers",
        "schedules": "/schedules",
        "limits": "/limits",
        "documents": "/documents",
    }


@contextmanager
def _filled(stage: Stage, jobs: int) -> Iterator[Server]:
    own = stage.switchyard("dashboard", "postgresql", modules=MODULES)
    asyncio.run(fill(own["JOBS_DATABASE_URL"], jobs))
    env = environment("", **own, JOBS_MODULES=MODULES[-1], JOBS_LOG_FORMAT="json")
    command = [sys.executable, "-m", "switchyard.cli.main", "api", "--port"]
    with serving(stage, command, env) as server:
        yield server


def dashboard(stage: Stage, rounds: int, count: int) -> list[Row]:
    """Ask for each list, load pages in a browser, and keep OPEN_PAGES open, with `count` jobs."""
    with _filled(stage, count) as server:
        address = f"http://127.0.0.1:{server.port}"
        with httpx.Client(base_url=address, trust_env=False, timeout=60) as client:
            found = lists(client)
            rows = [_time_of(client, name, path, rounds) for name, path in found.items()]
            rows.append(_weight(client))
        rows += _paints(address, rounds)
        rows.append(asyncio.run(_open_pages(server, address)))
    return rows


def _time_of(client: httpx.Client, name: str, path: str, rounds: int) -> Row:
    row = Row(name, "ms", target="under 100 ms")
    for _ in range(rounds):
        times = []
        for _ in range(READS + 1):
            began = time.perf_counter()
            client.get(f"/dashboard{path}").raise_for_status()
            times.append(time.perf_counter() - began)
        row.rounds.append(statistics.median(times[1:]) * 1000)
    return row


def _weight(client: httpx.Client) -> Row:
    paths = ["/dashboard/jobs", *(f"/dashboard/static/{each}" for each in ASSETS)]
    total = sum(len(client.get(path).content) for path in paths)
    return Row("weight of the page of jobs", "KB", [total / 1000], target="under 150 KB")


def _paints(address: str, rounds: int) -> list[Row]:
    rows = {"": Row("overview: first paint", "ms", target="under 300 ms")}
    rows["/jobs"] = Row("jobs: first paint", "ms", target="under 300 ms")
    asked = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    with opened_browser() as browser:
        for path, row in rows.items():
            for _ in range(rounds * LOADS):
                browser.open("about:blank")
                browser.open(f"{address}/dashboard{path}")
                browser.wait(lambda: browser.run(asked) is not None, "the first paint")
                row.rounds.append(float(browser.run(asked)))
    return list(rows.values())


async def _open_pages(server: Server, address: str) -> Row:
    row = Row(f"{OPEN_PAGES} open pages", "% of a core", target="under 5 %")
    async with httpx.AsyncClient(
        base_url=address,
        trust_env=False,
        timeout=None,
        limits=httpx.Limits(max_connections=OPEN_PAGES + 1),
    ) as client:
        answer = await client.get("/jobs", params={"limit": OPEN_PAGES})
        ids = [each["job_id"] for each in answer.json()["jobs"]]
        paths = ["", "/jobs", "/dead", "/workers", "/limits", *(f"/jobs/{each}" for each in ids)]
        reading = []
        for path in paths[:OPEN_PAGES]:
            begun = asyncio.Event()
            reading.append(asyncio.create_task(_read(client, f"/dashboard{path}", begun)))
            await asyncio.wait_for(begun.wait(), 60)
        cpu, began = server.cpu(), time.monotonic()
        await asyncio.sleep(OPEN_FOR)
        row.rounds.append(100 * (server.cpu() - cpu) / (time.monotonic() - began))
        for each in reading:
            if each.done():
                each.result()
            each.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    return row


async def _read(client: httpx.AsyncClient, path: str, begun: asyncio.Event) -> None:
    headers = {"accept": "text/event-stream"}
    async with client.stream("GET", path, headers=headers) as stream:
        stream.raise_for_status()
        async for _ in stream.aiter_bytes():
            begun.set()
    raise RuntimeError(f"the stream of {path} has ended")


ALL: dict[str, tuple[Measurement, int, int]] = {"dashboard": (dashboard, 1, 1_000_000)}
