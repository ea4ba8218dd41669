"""Budgets: jobs that wait, backfills that pause, and how spending is shown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from switchyard.cli.llm.app import SpendGrouping
from switchyard.services.engine.access.api_keys import Scope, create_key
from switchyard.services.engine.backfill.spec import parse_spec
from switchyard.services.engine.monitoring.check import Finding
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.records.states import State
from switchyard.services.engine.records.system import KeyLimits
from switchyard.services.llm import budget_account
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.operations import check_budgets
from switchyard.services.llm.records.llm_spend import BudgetState, SpentBy
from tests.support import commands, llm_server
from tests.support.api_server import serving
from tests.support.backfills import BackfillUser
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.llm_server import FakeLlmServer
from tests.support.system import System, open_system

CLASSIFY = {"text": "The sea is salt.", "labels": ["sea", "land"], "max_tokens": 7}
SEA = llm_server.answers('{"label": "sea"}')


def test_the_command_line_offers_every_grouping() -> None:
    assert {each.value for each in SpendGrouping} == set(get_args(SpentBy))


@pytest.fixture
def llm() -> Iterator[FakeLlmServer]:
    with FakeLlmServer() as server:
        server.always(SEA)
        yield server


@pytest.fixture
async def system(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path, llm: FakeLlmServer
) -> AsyncIterator[System]:
    (tmp_path / "prices.toml").write_text("[models.m]\ninput = 1000000\noutput = 1000000")
    modules = ("switchyard.services.llm.job_types",)
    async with open_system(broker310, sqlite_url, data_dir=tmp_path, modules=modules) as opened:
        overrides = {
            "llm_base_url": llm.url,
            "llm_model": "m",
            "llm_timeout": 20.0,
            "llm_prices": tmp_path / "prices.toml",
        }
        opened.settings = opened.settings.model_copy(update=overrides)
        yield opened


async def jobctl(system: System, *arguments: str) -> str:
    """Run `jobctl` in a process of its own, whose output has no logs of this one's workers."""
    process = await commands.jobctl("llm", *arguments, **_environment(system))
    assert process.returncode == 0, process.stderr
    return process.stdout


def _environment(system: System) -> dict[str, str]:
    settings = system.settings
    return {
        "JOBS_DATABASE_URL": settings.ledger_url,
        "JOBS_LLM_PRICES": str(settings.llm_prices),
        "JOBS_LLM_BUDGET_PER_DAY": str(settings.llm_budget_per_day),
        "JOBS_LLM_BASE_URL": str(settings.llm_base_url),
        "JOBS_LLM_MODEL": "m",
    }


async def test_a_job_without_a_budget_waits_without_an_attempt_and_says_so(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget_account, "RECHECK_INTERVAL", 0.1)
    system.settings = system.settings.model_copy(update={"llm_budget_per_day": 1.0})
    await system.start_worker("llm")
    job_id = await system.publish("hot.classify", CLASSIFY)
    record = await system.wait_for_state(job_id, State.RETRYING)
    assert record.error_type == "NoBudget"
    assert record.attempts == 0
    assert "goes on at 00:00 UTC" in (record.error_message or "")
    (budget,) = json.loads(await jobctl(system, "status", "--json"))["budgets"]
    assert (budget["spent"], budget["too_little_left"]) == (0, True)
    assert "jobs wait" in await jobctl(system, "status")
    await system.stop_workers()
    system.settings = system.settings.model_copy(update={"llm_budget_per_day": 1_000_000.0})
    await system.start_worker("llm")
    await system.wait_for_state(job_id, State.SUCCEEDED, timeout=30)
    report = json.loads(await jobctl(system, "spend", "--by", "type", "--json"))
    (row,) = report["rows"]
    assert (row["name"], row["calls"], row["cost"]) == ("classify", 1, 18)
    assert report["currency"] == "USD"
    assert "18.00 USD" in await jobctl(system, "spend")


async def test_the_doctor_names_a_spent_budget_of_a_key_and_the_command_that_raises_it(
    system: System,
) -> None:
    limits = KeyLimits(budget_per_day=5.0, budget_per_month=1_000.0)
    key = await create_key(system.ledger, "shop", [Scope.PUBLISH], limits)
    context = DoctorContext(system.settings, system.registry, ledger=system.ledger)
    assert await check_budgets(context) == []
    await system.start_worker("llm")
    job_id = await system.publish("hot.classify", CLASSIFY, source=f"api:{key.id}")
    record = await system.wait_for_state(job_id, State.RETRYING)
    command = f"jobctl keys limit {key.id} --budget-per-day AMOUNT"
    assert f"It goes on when that is raised: {command}" in (record.error_message or "")
    (diagnostic,) = await check_budgets(context)
    assert diagnostic.finding is Finding.BUDGET_SPENT
    assert f"the budget of the API key {key.id} for 20" in diagnostic.detail
    assert "0.00 of 5.00 USD spent" in diagnostic.detail
    assert f"`{command}`" in diagnostic.remedy


def test_each_budget_names_what_raises_it() -> None:
    def raised_by(key: str) -> str:
        return BudgetState(key, 1.0, 0.0, 0.0).raised_by

    assert raised_by("day:2026-11-22") == "JOBS_LLM_BUDGET_PER_DAY"
    assert raised_by("key:ab/2026-11") == "jobctl keys limit ab --budget-per-month AMOUNT"
    assert raised_by("backfill:b-1") == "jobctl backfill set b-1 --budget AMOUNT"


@pytest.mark.long
async def test_a_backfill_publishes_no_more_than_its_budget_lets_run(
    system: System, llm: FakeLlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget_account, "RECHECK_INTERVAL", 0.1)
    user = BackfillUser(system)
    template = {**CLASSIFY, "text": "Text {n}"}
    spec: dict[str, Any] = {"job_type": "classify", "payload": template}
    options = {"source": "numbers", "options": {"to": 40}}
    preview = await user.backfills.preview(parse_spec({**options, **spec}))
    assert preview.cost is not None
    assert preview.cost.jobs == 40
    assert preview.cost.output_tokens == 7 * 40
    assert preview.cost.cost == preview.cost.input_tokens + preview.cost.output_tokens
    started = await user.start("numbers", {"to": 40}, high=5, budget=1.0, **spec)
    await system.start_worker("llm")
    running = asyncio.create_task(user.run(started))

    async def is_short() -> bool:
        operation = await system.ledger.bulk.get_bulk(started.id)
        return operation is not None and "too little left" in (operation.note or "")

    await eventually(is_short)
    own_jobs, _ = await system.ledger.bulk_jobs.count_bulk_jobs(started.id)
    assert sum(own_jobs.values()) < 40
    assert llm.requests == []
    await system.ledger.bulk.set_bulk_limits(started.id, {"budget": 1_000_000.0})
    await asyncio.wait_for(running, 60)
    own_jobs, _ = await system.ledger.bulk_jobs.count_bulk_jobs(started.id)
    assert own_jobs == {State.SUCCEEDED: 40}
    spent = await LlmLedger(system.ledger).spending.llm_spend("backfill")
    assert [(row.name, row.cost) for row in spent] == [(started.id, 40 * 18)]


async def test_spending_is_shown_over_http_and_by_the_client(system: System) -> None:
    await system.start_worker("llm")
    for _ in range(2):
        job_id = await system.publish("hot.classify", CLASSIFY)
        await system.wait_for_state(job_id, State.SUCCEEDED)
    async with serving(system.settings) as api:
        report = (await api.client.get("/llm/spend", params={"by": "model"})).json()
        assert [(row["name"], row["calls"]) for row in report["rows"]] == [("m", 1)]
        assert report["rows"][0]["saved"] == 18
        unknown_grouping = await api.client.get("/llm/spend", params={"by": "weather"})
        assert unknown_grouping.status_code == 422
        without_calls = await api.client.get("/llm/spend", params={"until": "2020-01-01"})
        assert without_calls.json()["rows"] == []
        metrics = (await api.client.get("/metrics")).text
        assert 'switchyard_llm_cost_today{server="default"} 18.0' in metrics
        assert "switchyard_llm_saved_today 18.0" in metrics
