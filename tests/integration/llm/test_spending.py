"""The cost of calls: recorded for each requester, and within budgets also with many processes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from switchyard.api.dashboard.llm import read_costs
from switchyard.services.common.durations import DAY
from switchyard.services.common.errors import PermanentError
from switchyard.services.common.prices import ModelPrices
from switchyard.services.common.settings import LlmServer, Settings
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.sql import committer
from switchyard.services.llm.budget_account import BudgetAccount, EmbeddingBudget, NoBudget
from switchyard.services.llm.completion_reader import Completion
from switchyard.services.llm.gate import Urgency
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.ledger.llm_slots import LlmSlotRepository
from switchyard.services.llm.ledger.llm_tables import llm_calls
from switchyard.services.llm.llm_errors import LlmLimited, LlmUnavailable
from switchyard.services.llm.model_client import ModelClient
from switchyard.services.llm.records.llm_spend import CallState, LlmCall, NoBudgetLeft, Requester
from switchyard.services.llm.server_client import NETWORK_TRIES
from switchyard.services.pipeline.index.embedder import embedder_named
from tests.support import llm_server
from tests.support.eventually import eventually
from tests.support.llm_server import FakeLlmServer
from tests.support.made import claim, finish, new_job
from tests.support.site import slow
from tests.support.small_steps import remove_in_steps

PRICES = """
[models.m]
input = 1000000
output = 1000000
"""
"""A token costs 1: a call of the test server has 11 + 7 tokens, and costs 18."""
REQUESTER = Requester("job-1", "classify", "arxiv", "doc-1", "backfill-1")


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("switchyard.services.llm.server_client.FIRST_RETRY_DELAY", 0.01)


@pytest.fixture
def settings(tmp_path: Path, llm: FakeLlmServer) -> Settings:
    (tmp_path / "prices.toml").write_text(PRICES)
    return Settings.model_validate(
        {
            "llm_base_url": llm.url,
            "llm_model": "m",
            "llm_timeout": 20,
            "llm_prices": tmp_path / "prices.toml",
            "data_dir": tmp_path,
        }
    )


def chat_of(text: str, max_tokens: int = 7) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}


async def test_the_records_of_an_answer_are_committed_with_the_end_of_its_job(
    settings: Settings, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "MAX_DELAY", 60.0)
    records, requester = LlmLedger(ledger), Requester("job-1")
    question: dict[str, Any] = {"urgency": Urgency(), "timeout": 60.0, "requester": requester}
    await ledger.jobs.record(new_job())
    await ledger.jobs.claim(claim())
    kinds: list[str] = []
    ledger.observe(lambda kind, *_: kinds.append(kind))
    async with ModelClient.open(settings, ledger) as client:
        await client.answer(chat_of("a"), **question, record_soon=True)
        assert kinds == ["write"]  # the claim to ask, and the slot
        # A second caller gets the answer meanwhile, and waits for no record.
        assert (await client.answer(chat_of("a"), **question, record_soon=True))[1]
        (server,) = await records.slots.llm_servers()
        assert server.in_flight == 1
        assert await records.spending.llm_spend("job") == []
        kinds.clear()
        assert await ledger.jobs.finish(finish()) is not None
        assert kinds == ["write"]
        (server,) = await records.slots.llm_servers()
        assert server.in_flight == 0
        (spent,) = await records.spending.llm_spend("job")
        assert (spent.calls, spent.saved_calls, spent.cost) == (1, 1, 18.0)
        assert (await client.answer(chat_of("a"), **question))[1]


async def test_a_slot_is_given_back_if_the_answer_was_stored_after_all(
    settings: Settings, plain_ledger: Ledger
) -> None:
    """The answer's writer was killed after it had stored the file and before it had recorded it."""
    records = LlmLedger(plain_ledger)
    async with ModelClient.open(settings, plain_ledger) as client:
        assert not await ask(client, "a")
        page = await records.answers.examine_llm_answers(
            max_age=0, max_bytes=0, after=None, limit=9
        )
        await records.answers.drop_llm_answers(page.superfluous)
        assert await ask(client, "a")
        (server,) = await records.slots.llm_servers()
        assert server.in_flight == 0


async def ask(
    client: ModelClient, text: str, *, requester: Requester = REQUESTER, max_tokens: int = 7
) -> bool:
    _, reused = await client.answer(
        chat_of(text, max_tokens), urgency=Urgency(), timeout=60.0, requester=requester
    )
    return reused


def call_of(cost: float | None, *, backfill: str | None = None, number: str = "1") -> LlmCall:
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    requester = Requester(backfill_id=backfill)
    return LlmCall(number, CallState.OPEN, requester, "p", "m", usage, cost)


async def test_a_call_is_recorded_for_its_whole_origin_and_a_stored_answer_costs_nothing(
    ledger: Ledger, settings: Settings
) -> None:
    async with ModelClient.open(settings, ledger) as client:
        assert not await ask(client, "What is a tide?")
        assert await ask(client, "What is a tide?")
    today = (await LlmLedger(ledger).spending.llm_spend("day"))[0].name
    names = {
        "day": today,
        "model": "m",
        "type": "classify",
        "source": "arxiv",
        "document": "doc-1",
        "job": "job-1",
        "backfill": "backfill-1",
    }
    for grouping, name in names.items():
        (row,) = await LlmLedger(ledger).spending.llm_spend(grouping)  # type: ignore[arg-type]
        assert (row.name, row.calls, row.saved_calls) == (name, 1, 1), grouping
        assert (row.input_tokens, row.output_tokens) == (11, 7)
        assert (row.cost, row.saved, row.reserved) == (18, 18, 0)
    providers = {
        row.name: row.calls for row in await LlmLedger(ledger).spending.llm_spend("provider")
    }
    assert providers == {"default": 1, "": 0}, "a saved call has no provider"
    spent = await LlmLedger(ledger).spending.llm_spent_today()
    assert (spent[""].cost, spent[""].saved, spent["default"].calls) == (18, 18, 1)
    assert await LlmLedger(ledger).spending.llm_spend("day", until="2020-01-01") == []


async def test_tokens_of_a_model_without_a_price_are_counted_as_unpriced(
    plain_ledger: Ledger, settings: Settings
) -> None:
    unpriced_settings = settings.model_copy(update={"llm_model": "other"})
    async with ModelClient.open(unpriced_settings, plain_ledger) as client:
        await ask(client, "a", requester=Requester())
    (row,) = await LlmLedger(plain_ledger).spending.llm_spend("model")
    assert (row.name, row.unpriced_calls, row.cost, row.input_tokens) == ("other", 1, 0, 11)
    budgeted = unpriced_settings.model_copy(update={"llm_budget_per_day": 1000.0})
    async with ModelClient.open(budgeted, plain_ledger) as client:
        with pytest.raises(NoBudget, match="no price for the model other"):
            await ask(client, "b", requester=Requester())


async def test_a_refused_call_is_not_recorded_and_a_broken_one_counts_by_its_estimate(
    plain_ledger: Ledger, settings: Settings, llm: FakeLlmServer
) -> None:
    budgeted = settings.model_copy(update={"llm_budget_per_day": 1_000_000.0})
    async with ModelClient.open(budgeted, plain_ledger) as client:
        llm.always(llm_server.fails(500))
        with pytest.raises(LlmUnavailable):
            await ask(client, "a")
        assert await LlmLedger(plain_ledger).spending.llm_spend("day") == []
        llm.always(llm_server.fails(429, Retry_After="60"))
        with pytest.raises(LlmLimited):
            await ask(client, "b")
    (budget,) = await LlmLedger(plain_ledger).spending.llm_budgets(per_day=5.0)
    assert (budget.spent, budget.reserved) == (0, 0)
    llm.always(llm_server.cut_in_the_middle())
    server = settings.llm_servers[0].model_copy(update={"name": "other"})  # not paused
    other_settings = budgeted.model_copy(update={"llm_providers": (server,)})
    async with ModelClient.open(other_settings, plain_ledger) as client:
        with pytest.raises(LlmUnavailable):
            await ask(client, "c")
    (row,) = await LlmLedger(plain_ledger).spending.llm_spend("day")
    assert row.unsure_calls == NETWORK_TRIES, "each try may have been charged"
    assert row.cost > NETWORK_TRIES * 18, "all of its estimate, each time"


async def test_a_broken_try_is_recorded_beside_the_one_that_was_answered(
    plain_ledger: Ledger, settings: Settings, llm: FakeLlmServer
) -> None:
    llm.next(llm_server.cut_in_the_middle())
    async with ModelClient.open(settings, plain_ledger) as client:
        await ask(client, "a")
    assert len(llm.requests) == 2
    (row,) = await LlmLedger(plain_ledger).spending.llm_spend("day")
    assert (row.calls, row.unsure_calls) == (2, 1)


async def test_ended_reservations_leave_no_rounding_error(
    plain_ledger: Ledger,
) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    calls = [
        LlmCall(f"call-{cost}", CallState.OPEN, REQUESTER, "default", "m", usage, cost)
        for cost in (0.1, 0.2, 0.3)
    ]
    for call in calls:
        await LlmLedger(plain_ledger).spending.reserve_llm_call(call, per_day=5.0)
    for call in calls:
        await LlmLedger(plain_ledger).spending.settle_llm_call(replace(call, state=CallState.FREE))
    (budget,) = await LlmLedger(plain_ledger).spending.llm_budgets(per_day=5.0)
    assert (budget.reserved, budget.left) == (0, 5)


async def test_a_call_cancelled_under_way_counts_as_spent(
    plain_ledger: Ledger, settings: Settings, llm: FakeLlmServer
) -> None:
    llm.always(slow(60))
    budgeted = settings.model_copy(update={"llm_budget_per_day": 1_000_000.0})
    async with ModelClient.open(budgeted, plain_ledger) as client:
        asking = asyncio.create_task(ask(client, "a"))
        await eventually(lambda: llm.requests)
        (budget,) = await LlmLedger(plain_ledger).spending.llm_budgets(per_day=1_000_000.0)
        assert budget.reserved > 7
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    (budget,) = await LlmLedger(plain_ledger).spending.llm_budgets(per_day=1_000_000.0)
    assert budget.reserved == 0
    assert budget.spent > 7


async def test_a_job_cancelled_before_its_call_leaves_nothing_reserved(
    ledger: Ledger, settings: Settings, llm: FakeLlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_slot, is_reserved = LlmSlotRepository.take_llm_slot, asyncio.Event()

    async def take_and_hang(*args: Any, **options: Any) -> Any:
        await take_slot(*args, **options)
        is_reserved.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(LlmSlotRepository, "take_llm_slot", take_and_hang)
    settings = settings.model_copy(update={"llm_budget_per_day": 1_000.0})
    async with ModelClient.open(settings, ledger) as client:
        task = asyncio.create_task(ask(client, "What is a tide?"))
        await is_reserved.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    (budget,) = await LlmLedger(ledger).spending.llm_budgets(per_day=1_000.0)
    assert (budget.spent, budget.reserved) == (0, 0)
    assert llm.requests == []


async def test_many_processes_never_overrun_a_budget_together(
    ledger: Ledger, database_url: str, settings: Settings, llm: FakeLlmServer
) -> None:
    budget = 200.0  # each call may cost 7 and its question, and costs 18
    budgeted = settings.model_copy(update={"llm_budget_per_day": budget, "llm_concurrency": 16})
    async with (
        await Ledger.open(database_url) as second,
        ModelClient.open(budgeted, ledger) as first_client,
        ModelClient.open(budgeted, second) as second_client,
    ):
        calls = [
            ask((first_client, second_client)[n % 2], f"question {n}", requester=Requester())
            for n in range(40)
        ]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        refused = [each for each in outcomes if isinstance(each, NoBudget)]
        assert len(refused) + outcomes.count(False) == 40
        # What the other calls had reserved is free again for calls that try once more.
        while not any((each.after or 0) > 15 for each in refused):
            try:
                await ask(first_client, f"again {len(llm.requests)}", requester=Requester())
            except NoBudget as error:
                refused = [error]
        with pytest.raises(NoBudget, match="goes on at 00:00 UTC") as raised:
            await ask(first_client, "one more", requester=Requester())
    (state,) = await LlmLedger(ledger).spending.llm_budgets(per_day=budget)
    assert state.spent == 18 * len(llm.requests)
    assert budget - 60 < state.spent <= budget
    assert state.is_short
    assert (raised.value.after or 0) <= 300
    assert (raised.value.counts, raised.value.ages) == (False, False)


async def test_a_backfill_has_its_own_budget_and_continues_when_it_is_raised(
    ledger: Ledger,
) -> None:
    await ledger.bulk.create_bulk(
        "backfill-1", kind="backfill", title="t", spec={}, created_by="me", budget=10.0
    )
    of_backfill = {"backfill": "backfill-1"}
    assert await LlmLedger(ledger).spending.reserve_llm_call(call_of(99.0), per_day=None) is False
    assert (
        await LlmLedger(ledger).spending.reserve_llm_call(call_of(6.0, **of_backfill), per_day=None)
        is True
    )
    refused = await LlmLedger(ledger).spending.reserve_llm_call(
        call_of(6.0, number="2", **of_backfill), per_day=None
    )
    assert isinstance(refused, NoBudgetLeft)
    assert (refused.budget.reserved, refused.is_spent, refused.seconds) == (6, False, None)
    await ledger.bulk.set_bulk_limits("backfill-1", {"budget": 12.0})
    (budget,) = await LlmLedger(ledger).spending.llm_budgets(per_day=None)
    assert not budget.is_short
    assert (
        await LlmLedger(ledger).spending.reserve_llm_call(
            call_of(6.0, number="2", **of_backfill), per_day=None
        )
        is True
    )
    assert (
        await LlmLedger(ledger).spending.reserve_llm_call(
            call_of(0.0, number="3", **of_backfill), per_day=1.0
        )
        is True
    ), "what costs nothing needs no budget"


async def test_a_call_over_midnight_belongs_to_the_day_on_which_it_began(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    midnight = (time.time() // DAY + 1) * DAY

    def set_time(moment: float) -> None:
        monkeypatch.setattr("switchyard.services.llm.ledger.llm_spend.db_now", lambda _: moment)

    set_time(midnight - 2)
    assert await LlmLedger(ledger).spending.reserve_llm_call(call_of(6.0), per_day=10.0) is True
    refused = await LlmLedger(ledger).spending.reserve_llm_call(
        call_of(6.0, number="2"), per_day=10.0
    )
    assert isinstance(refused, NoBudgetLeft)
    assert refused.seconds == 2
    set_time(midnight)
    assert (
        await LlmLedger(ledger).spending.reserve_llm_call(call_of(6.0, number="2"), per_day=10.0)
        is True
    )
    await LlmLedger(ledger).spending.settle_llm_call(
        LlmCall("1", CallState.PAID, Requester(), "p", "m", {}, 5.0)
    )
    (budget,) = await LlmLedger(ledger).spending.llm_budgets(per_day=10.0)
    assert (budget.spent, budget.reserved) == (0, 6)
    day_before = time.strftime("%Y-%m-%d", time.gmtime(midnight - 2))
    (row,) = await LlmLedger(ledger).spending.llm_spend("day", until=day_before)
    assert (row.name, row.cost) == (day_before, 5)


async def test_a_call_is_settled_once_and_a_call_of_a_dead_process_is_charged(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await LlmLedger(ledger).spending.reserve_llm_call(call_of(6.0), per_day=10.0)
    assert (await LlmLedger(ledger).spending.settle_lost_llm_calls(9)).rows["llm_calls"] == 0
    monkeypatch.setattr("switchyard.services.llm.ledger.llm_spend.LOST_AFTER", -1.0)
    assert (await LlmLedger(ledger).spending.settle_lost_llm_calls(9)).rows["llm_calls"] == 1
    (budget,) = await LlmLedger(ledger).spending.llm_budgets(per_day=10.0)
    assert (budget.spent, budget.reserved) == (6, 0)
    paid = LlmCall("1", CallState.PAID, Requester(), "p", "m", {"prompt_tokens": 2}, 2.0)
    await asyncio.gather(*(LlmLedger(ledger).spending.settle_llm_call(paid) for _ in range(3)))
    (budget,) = await LlmLedger(ledger).spending.llm_budgets(per_day=10.0)
    assert (budget.spent, budget.reserved) == (2, 0), "the process was slow and not dead"
    assert (await LlmLedger(ledger).spending.llm_spend("provider"))[0].calls == 1
    assert (await LlmLedger(ledger).spending.llm_spent_today())["p"].calls == 1
    await LlmLedger(ledger).spending.reserve_llm_call(call_of(6.0, number="2"), per_day=100.0)
    await LlmLedger(ledger).spending.reserve_llm_call(call_of(6.0, number="2"), per_day=100.0)
    new_call = LlmCall("3", CallState.PAID, Requester(), "p", "m", {"prompt_tokens": 2}, 3.0)
    await asyncio.gather(*(LlmLedger(ledger).spending.settle_llm_call(new_call) for _ in range(3)))
    (budget,) = await LlmLedger(ledger).spending.llm_budgets(per_day=100.0)
    assert (budget.spent, budget.reserved) == (5, 6), "the same call again is one call"


async def test_old_calls_are_deleted(ledger: Ledger) -> None:
    spending = LlmLedger(ledger).spending
    for number in range(5):
        call = LlmCall(str(number), CallState.PAID, Requester(), "p", "m", {}, 2.0)
        await spending.settle_llm_call(call)

    async def delete_old_calls(max_age: float) -> Counter[str]:
        return await remove_in_steps(
            lambda limit: spending.drop_llm_calls(max_age=max_age, limit=limit)
        )

    assert await delete_old_calls(0) == Counter(), "today's stay"
    rows = await delete_old_calls(-2 * DAY)
    assert rows["llm_calls"] == 5
    assert rows["llm_accounts"] > 0
    assert await LlmLedger(ledger).spending.llm_spend("day") == []


async def test_the_month_of_the_dashboard_has_its_first_day_on_the_31st_too(ledger: Ledger) -> None:
    spending = LlmLedger(ledger).spending
    days = {"2026-06-30": 7.0, "2026-07-01": 2.0, "2026-07-02": 3.0, "2026-07-31": 5.0}
    for day, cost in days.items():
        await spending.settle_llm_call(
            LlmCall(day, CallState.PAID, Requester(), "p", "m", {}, cost)
        )
    statement = update(llm_calls).values(day=llm_calls.c.id)
    await ledger.core.database.write(lambda connection: connection.execute(statement))
    costs = await read_costs(spending, date(2026, 7, 31))
    assert (costs["month"], costs["month_forecast"], costs["today"].cost) == (10.0, 10.0, 5.0)
    assert (costs["days"][0], len(costs["costs"]), sum(costs["costs"])) == ("2026-07-02", 30, 8.0)
    costs = await read_costs(spending, date(2026, 8, 1))
    assert (costs["month"], costs["days"][0], sum(costs["costs"])) == (0.0, "2026-07-03", 5.0)


async def test_embedding_calls_are_charged_like_answers(
    ledger: Ledger, settings: Settings, llm: FakeLlmServer
) -> None:
    settings = settings.model_copy(update={"llm_budget_per_day": 30.0})
    embedder_settings = {"embed_base_url": llm.url, "embed_model": "m", "embed_dimensions": 8}
    embedding_budget = EmbeddingBudget(BudgetAccount.from_settings(settings, ledger), REQUESTER)
    embedder = embedder_named(
        settings.model_copy(update=embedder_settings), "m-8", 8, embedding_budget
    )
    assert embedder is not None
    assert len(await embedder.embed(["one two", "three"])) == 2
    (row,) = await LlmLedger(ledger).spending.llm_spend(
        "provider", since="2020-01-01", until=None, limit=10
    )
    assert (row.name, row.calls, row.input_tokens, row.cost) == ("embeddings", 1, 10, 10.0)
    (row,) = await LlmLedger(ledger).spending.llm_spend(
        "document", since="2020-01-01", until=None, limit=10
    )
    assert row.name == "doc-1"
    with pytest.raises(NoBudget, match="has too little left"):
        await embedder.embed(["a text that is longer than what is left of the budget" * 2])
    assert len(llm.requests) == 1
    llm.next(llm_server.fails(401))
    with pytest.raises(PermanentError):
        await embedder.embed(["one"])
    (day,) = await LlmLedger(ledger).spending.llm_budgets(per_day=30.0)
    assert (day.spent, day.reserved) == (10.0, 0.0)


@pytest.mark.parametrize(
    ("chunks", "text", "tokens"), [(70, "x" * 600, 70), (0, "x" * 60, 20), (500, "x" * 600, 120)]
)
def test_an_answer_without_usage_counts_by_its_pieces_up_to_its_limit(
    chunks: int, text: str, tokens: int
) -> None:
    account = BudgetAccount(None, ModelPrices(), None)
    chat = {"messages": [{"role": "user", "content": "x" * 300}], "max_tokens": 120}
    call = account.estimate(LlmServer(base_url="http://there/v1"), chat, Requester())
    assert call.usage["prompt_tokens"] > 100 + 8
    ended = account.with_actual_cost(call, Completion(text, "m", "stop", {}, chunks))
    assert ended.usage == {
        "prompt_tokens": call.usage["prompt_tokens"],
        "completion_tokens": tokens,
    }
    counted = Completion(text, "m", "stop", {"prompt_tokens": 3, "completion_tokens": 200}, 7)
    assert account.with_actual_cost(call, counted).usage == counted.usage
