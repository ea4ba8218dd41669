"""Fills a ledger with a year of jobs, by statements that make many rows at once: 10 million on
PostgreSQL take minutes; published one by one they would take hours.

What grows with a ledger's age is made in proportion to the number of jobs: ended jobs, their
attempts and tags, letters that are over, operations. What is open is the same in a small ledger and
in a large one, so that the two differ by their past alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import Template

from sqlalchemy import Connection, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from switchyard.services.engine.ledger import Ledger

YEAR = 365 * 86400
"""Seconds over which the jobs were made, evenly."""
OPEN_JOBS = 3_000
"""The newest ones: queued, waiting for their next attempt, running."""
JOBS_PER_OPERATION = 10_000
RARE_SOURCE = "ended-long-ago"
"""A source that has 20 jobs, the oldest ones."""
_BATCH = 200_000
"""Rows of one transaction."""


@dataclass(frozen=True)
class Dialect:
    """What the two databases write differently; `$` marks what is put in."""

    numbers: str
    """FROM item with the numbers `n` from `:first` to `:last`."""
    hexadecimal: str
    repeated: str
    """So many x."""
    blob: str
    indexes: str
    """Selects name and statement of the indexes of `TABLES`, without those of constraints."""


TABLES = "('jobs', 'attempts', 'dead_letters', 'job_tags')"
DIALECTS = {
    "sqlite": Dialect(
        numbers="(WITH RECURSIVE numbers(n) AS (SELECT :first UNION ALL SELECT n + 1 "
        "FROM numbers WHERE n < :last) SELECT n FROM numbers) AS numbers",
        hexadecimal="printf('%0${digits}x', $number)",
        repeated="substr(replace(hex(zeroblob($length)), '0', 'x'), 1, $length)",
        blob="CAST($text AS BLOB)",
        indexes="SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL "
        f"AND tbl_name IN {TABLES}",
    ),
    "postgresql": Dialect(
        numbers="generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS n",
        hexadecimal="lpad(to_hex($number), $digits, '0')",
        repeated="repeat('x', $length)",
        blob="convert_to($text, 'UTF8')",
        indexes="SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' "
        f"AND tablename IN {TABLES} "
        "AND indexname NOT IN (SELECT conname FROM pg_constraint)",
    ),
}

_JOBS = f"""
INSERT INTO jobs (
  id, job_type, lane, routing_key, worker, priority, state, source, parent_id, pipeline, attempts,
  max_attempts, redrives, crashes, worker_id, claim_id, created_at, queued_at, started_at,
  finished_at, updated_at, reason, error_type, error_message, operation_id, metadata, payload,
  result
)
SELECT
  id, job_type, lane, lane || '.' || job_type, 'llm', 5, state, source,
  CASE WHEN n % 3 = 1 THEN parent END, CASE WHEN n % 3 = 1 THEN parent END,
  CASE state WHEN 'dead' THEN 3 WHEN 'retrying' THEN 1 WHEN 'queued' THEN 0 ELSE 1 END, 3, 0, 0,
  CASE WHEN state IN ('succeeded', 'dead', 'running') THEN 'worker-' || (n % 20) END,
  CASE WHEN state IN ('succeeded', 'dead', 'running') THEN 'claim-' || n END,
  made_at, made_at + 0.01,
  CASE WHEN state IN ('succeeded', 'dead', 'running') THEN made_at + 0.5 END,
  CASE WHEN state IN ('succeeded', 'dead', 'cancelled') THEN made_at + 1 + n % 97 END,
  made_at + 1 + n % 97,
  CASE state WHEN 'dead' THEN 'exhausted' WHEN 'cancelled' THEN 'cancelled' END,
  CASE WHEN state = 'dead' THEN 'Error' || (n % 20) END,
  CASE WHEN state = 'dead' THEN 'no page ' || n || ' of https://example.org/' || n END,
  CASE WHEN lane = 'backfill' THEN 'operation-' || (n / {JOBS_PER_OPERATION}) END,
  $metadata, $payload, CASE WHEN state = 'succeeded' THEN $result END
FROM (
  SELECT n, $id AS id, $parent AS parent, $made_at AS made_at,
    CASE n % 7 WHEN 0 THEN 'embed_chunks' WHEN 1 THEN 'ingest_arxiv' ELSE 'summarize_content' END
      AS job_type,
    CASE WHEN n % 10 < 4 THEN 'hot' WHEN n % 10 < 8 THEN 'backfill' WHEN n % 10 = 8 THEN 'vlm_ocr'
      ELSE 'maintenance' END AS lane,
    CASE WHEN n <= 20 THEN '{RARE_SOURCE}' ELSE 'source-' || (n % 20) END AS source,
    CASE
      WHEN n > :total - :open THEN
        CASE WHEN n % 10 < 7 THEN 'queued' WHEN n % 10 < 9 THEN 'retrying' ELSE 'running' END
      WHEN n % 49 = 7 THEN 'dead' WHEN n % 97 = 31 THEN 'cancelled' ELSE 'succeeded'
    END AS state
  FROM $numbers
) AS made"""
_ATTEMPTS = """
INSERT INTO attempts (job_id, redrive, attempt, worker_id, started_at, finished_at, outcome,
  error_type, error_message)
SELECT $id, 0, 1, 'worker-1', $made_at, $made_at + 0.4, 'failed', 'Timeout', 'no answer in 30 s'
FROM $numbers WHERE n % 10 = 7"""
_LETTERS = """
INSERT INTO dead_letters (id, job_id, job_type, lane, routing_key, reason, error_type,
  error_message, traceback, attempts, redrives, worker, first_at, dead_at, copies, state,
  updated_at, fingerprint, headers, body)
SELECT $id, $id, 'summarize_content', 'hot', 'hot.summarize_content', 'exhausted',
  'Error' || (n % 20), 'no page ' || n, 'in fetch', 3, 0, 'llm', $made_at + 100, $made_at + 100, 1,
  CASE WHEN n % 49 = 7 THEN 'dropped' ELSE 'redriven' END, $made_at + 600000, 'cause-' || (n % 20),
  '{}', $body
FROM $numbers WHERE n <= :total - :open AND (n % 49 = 7 OR n % 99 = 57)"""
_TAGS = """
INSERT INTO job_tags (job_id, name, value, created_at)
SELECT $id, 'team', CASE n % 40 WHEN 5 THEN 'search' ELSE 'archive' END, $made_at
FROM $numbers WHERE n % 20 = 5"""
_OPERATIONS = """
INSERT INTO bulk_operations (id, kind, title, state, created_by, created_at, started_at, updated_at,
  finished_at, spec, counts)
SELECT 'operation-' || n, 'backfill', 'a backfill', 'completed', 'bench', :until - 86400,
  :until - 86400, :until - 86000, :until - 86000, '{}', '{}'
FROM $numbers"""


async def fill(ledger: Ledger, url: str, count: int) -> None:
    """Put so many jobs into an empty ledger, which is at `url`."""
    database = ledger.core.database
    dialect = DIALECTS[database.dialect]
    until = ledger.clock.time()

    # The ledger gives a statement of PostgreSQL up after 30 s; an index of millions takes longer.
    patient = (
        create_async_engine(
            make_url(url).set(drivername="postgresql+asyncpg"), isolation_level="AUTOCOMMIT"
        )
        if database.dialect == "postgresql"
        else None
    )

    def drop_indexes(connection: Connection) -> list[str]:
        found = connection.execute(text(dialect.indexes)).all()
        for name, _ in found:
            connection.execute(text(f"DROP INDEX {name}"))
        return [statement for _, statement in found]

    async def run(statement: str, values: Mapping[str, float] | None = None) -> None:
        if patient is None:
            await database.write_each(
                lambda connection: connection.execute(text(statement), values)
            )
        else:
            async with patient.connect() as connection:
                await connection.execute(text(statement), values)

    # Made at the end: row by row they would take most of the time.
    indexes = await database.write(drop_indexes)
    rows = [_written(each, dialect, until, count) for each in (_JOBS, _ATTEMPTS, _LETTERS, _TAGS)]
    for first in range(1, count + 1, _BATCH):
        for statement in rows:
            await run(statement, {"first": first, "last": min(count, first + _BATCH - 1)})
    last = {"first": 0, "last": count // JOBS_PER_OPERATION}
    await run(_written(_OPERATIONS, dialect, until, count), last)
    for statement in indexes:
        await run(statement)
    if database.dialect == "postgresql":
        # As its autovacuum does sooner or later; on SQLite nothing does.
        await run("VACUUM (ANALYZE) jobs, attempts, dead_letters, job_tags, bulk_operations")
    if patient is not None:
        await patient.dispose()


def _written(statement: str, dialect: Dialect, until: float, count: int) -> str:
    """Write a statement for one database and that many jobs."""

    def put(template: str, **values: object) -> str:
        return Template(template).substitute(values)

    def job_id(number: str) -> str:
        # Scattered, as real ids are: 2,654,435,761 has no factor in common with 2 ** 32.
        scattered = f"((CAST({number} AS bigint) * 2654435761) % 4294967296)"
        first = put(dialect.hexadecimal, digits=8, number=scattered)
        last = put(dialect.hexadecimal, digits=12, number=f"CAST({number} AS bigint)")
        return f"{first} || '-0000-4000-8000-' || {last}"

    def filled(before: str, length: int, after: str) -> str:
        return f"'{before}' || {put(dialect.repeated, length=length)} || '{after}'"

    made = put(
        statement,
        numbers=dialect.numbers,
        id=job_id("n"),
        parent=job_id("n - 1"),
        made_at=f"({until!r} - ({count} - n) * {YEAR / count!r})",
        metadata=filled('{"metadata":{"note":"', 200, '"}}'),
        payload=filled('{"url":"https://example.org/document","text":"', 300, '"}'),
        result=filled('{"summary":"', 100, '"}'),
        body=put(dialect.blob, text=filled('{"text":"', 300, '"}')),
    )
    return (
        made.replace(":total", str(count))
        .replace(":open", str(OPEN_JOBS))
        .replace(":until", repr(until))
    )
