"""Statements that PostgreSQL would plan badly by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.large_ledger import fill
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.sql.dialect import keys_parameter, select_by_keys
from switchyard.services.engine.records.bulk import BulkHold
from switchyard.services.engine.records.retention import RetentionAges
from switchyard.services.engine.records.states import State


@pytest.mark.postgres
async def test_rows_are_looked_up_by_keys_and_not_by_reading_all(postgres_url: str) -> None:
    letters = [f"letter-{number}" for number in range(3_000)]
    async with await Ledger.open(postgres_url) as ledger:
        await ledger.bulk.create_bulk(
            "redrive-1", kind="redrive", title="", spec={}, created_by="test"
        )
        assert await ledger.bulk.claim_bulk(BulkHold("me", 60.0), kinds=["redrive"]) is not None
        assert await ledger.redrives.record_plan("redrive-1", "me", dict.fromkeys(letters, 1))
        keys = [*letters[:200], "unknown"]
        assert await ledger.redrives.planned_redrives("redrive-1", keys) == dict.fromkeys(
            keys[:-1], 1
        )
    query = select_by_keys(
        "postgresql",
        "letter_id, redrives",
        "redriven_letters",
        "letter_id",
        where="operation_id = :operation",
    )
    engine = create_async_engine(postgres_url)
    async with engine.connect() as connection:
        answer = await connection.execute(
            text(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}"),
            {"operation": "redrive-1", **keys_parameter("postgresql", keys)},
        )
        [explanation] = answer.scalar_one()
    await engine.dispose()
    assert [
        node for node in walk_nodes(explanation["Plan"]) if "Rows Removed by Filter" in node
    ] == []


@pytest.mark.postgres
async def test_pruning_looks_up_what_keeps_a_job_and_reads_no_table_whole(
    postgres_url: str,
) -> None:
    letters = [f"letter-{number}" for number in range(3_000)]
    plans: list[str] = []
    ages = RetentionAges(dict.fromkeys((State.SUCCEEDED, State.CANCELLED, State.DEAD), 1.0))
    async with await Ledger.open(postgres_url) as ledger:
        await fill(ledger, postgres_url, 5_000)
        await ledger.bulk.create_bulk(
            "redrive-1", kind="redrive", title="", spec={}, created_by="test"
        )
        assert await ledger.bulk.claim_bulk(BulkHold("me", 60.0), kinds=["redrive"]) is not None
        assert await ledger.redrives.record_plan("redrive-1", "me", dict.fromkeys(letters, 1))
        await ledger.core.database.write_each(_make_letters_wait)

        def explain(connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
            if statement.startswith("SELECT jobs.id, jobs.created_at"):
                explanation = connection.exec_driver_sql(f"EXPLAIN (VERBOSE) {statement}", values)
                plans.append("\n".join(explanation.scalars()))

        event.listen(Engine, "after_cursor_execute", explain)
        try:
            examination = await ledger.retention.examine(
                ages, State.SUCCEEDED, "hot", before=None, limit=100
            )
        finally:
            event.remove(Engine, "after_cursor_execute", explain)
    assert examination.removable
    [plan] = plans
    assert "SubPlan" in plan
    assert "hashed SubPlan" not in plan


def _make_letters_wait(connection: Connection) -> None:
    connection.execute(text("UPDATE dead_letters SET state = 'waiting'"))
    connection.execute(text("ANALYZE dead_letters, redriven_letters, bulk_operations"))


def walk_nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from walk_nodes(child)
