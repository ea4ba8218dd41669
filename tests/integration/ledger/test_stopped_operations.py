"""What the doctor says of operations that stopped by themselves, and of a broker's full disk."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.check import Diagnostic, Finding
from switchyard.services.engine.monitoring.checks import jobs
from switchyard.services.engine.monitoring.checks.broker import alarms
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.records.bulk import BulkState


async def check_operations(ledger: Ledger) -> Diagnostic:
    context = cast("DoctorContext", SimpleNamespace(need_ledger=lambda: ledger))
    (diagnostic,) = await jobs.operations(context)
    return diagnostic


@pytest.mark.parametrize(
    ("kind", "command"), [("backfill", "jobctl backfill"), ("redrive", "jobctl dead redrives")]
)
@pytest.mark.parametrize("state", [BulkState.FAILED, BulkState.HALTED])
async def test_an_operation_that_stopped_by_itself_is_reported_with_its_reason(
    ledger: Ledger, kind: str, command: str, state: BulkState
) -> None:
    for name in (f"{kind}-1", f"{kind}-2"):
        await ledger.bulk.create_bulk(name, kind=kind, title="t", spec={}, created_by="ann")
    assert (await check_operations(ledger)).status == "ok"
    note = "no job type 'resize'"
    await ledger.bulk.move_bulk(f"{kind}-1", state, among=list(BulkState), note=note)
    diagnostic = await check_operations(ledger)
    assert (diagnostic.status, diagnostic.finding) == ("warning", Finding.OPERATION_STOPPED)
    assert f"{kind}-1 has {state}: no job type 'resize'" in diagnostic.detail
    assert f"`{command} resume {kind}-1`" in diagnostic.remedy
    assert f"{kind}-2" not in diagnostic.detail
    await ledger.bulk.move_bulk(f"{kind}-1", BulkState.CANCELLED, among=list(BulkState))
    assert (await check_operations(ledger)).status == "ok"


async def test_an_operation_that_stopped_long_ago_is_no_longer_reported(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ledger.bulk.create_bulk("backfill-1", kind="backfill", title="t", spec={}, created_by="a")
    await ledger.bulk.move_bulk("backfill-1", BulkState.FAILED, among=list(BulkState))
    assert (await check_operations(ledger)).status == "warning"
    now = ledger.clock.time()
    monkeypatch.setattr(ledger.clock, "time", lambda: now + 8 * 24 * 3600)
    assert (await check_operations(ledger)).status == "ok"


@pytest.mark.parametrize(
    ("limit", "is_offered"), [(50_000_000, False), (48_000_000, False), (2_000_000_000, True)]
)
async def test_a_disk_limit_of_50_mb_is_advised_only_where_the_limit_is_higher(
    limit: int, is_offered: bool
) -> None:
    node = {"name": "rabbit@a", "disk_free_alarm": True, "disk_free": 9, "disk_free_limit": limit}

    async def get(_: str) -> Any:
        return [node]

    context = SimpleNamespace(need_management=lambda: SimpleNamespace(get=get))
    (diagnostic,) = await alarms(cast("DoctorContext", context))
    assert diagnostic.finding is Finding.ALARM_DISK
    assert "free disk space there" in diagnostic.remedy
    assert ("set_disk_free_limit 50MB" in diagnostic.remedy) is is_offered
