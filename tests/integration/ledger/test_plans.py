"""Statements that PostgreSQL plans badly by itself on tables that it has no statistics of yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.sql.dialect import keys_parameter, select_by_keys
from switchyard.services.engine.records.bulk import BulkHold


@pytest.mark.postgres
async def test_rows_are_looked_up_by_keys_and_not_by_reading_all(postgres_url: str) -> None:
    letters = [f"letter-{number}" for number in range(3_000)]
    async with await Ledger.open(postgres_url) as ledger:
        await ledger.bulk.create_bulk(
            "redrive-1", kind="redrive", title="", spec={}, created_by="test"
        )
        assert await ledger.bulk.claim_bulk(BulkHold("me", 60.0), kinds=["redrive"]) is not None
        assert await ledger.redrives.record_plan("redrive-1", "me", dict.fromkeys(letters, 1))
        wanted = [*letters[:200], "unknown"]
        assert await ledger.redrives.planned_redrives("redrive-1", wanted) == dict.fromkeys(
            wanted[:-1], 1
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
            {"operation": "redrive-1", **keys_parameter("postgresql", wanted)},
        )
        [explained] = answer.scalar_one()
    await engine.dispose()
    assert [node for node in nodes(explained["Plan"]) if "Rows Removed by Filter" in node] == []


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for each in plan.get("Plans", []):
        yield from nodes(each)
