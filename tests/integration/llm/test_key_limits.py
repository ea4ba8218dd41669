"""Limits of API keys on `/v1`: models, priority, rates and budgets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from switchyard.api.llm.key_limits import AdmittedRequest
from switchyard.api.llm.openai_requests import answer_headers
from switchyard.services.common.settings import Settings
from switchyard.services.engine.access.api_keys import Scope, create_key
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.system import KeyLimits
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.llm_queue import LlmResult, LlmStatus
from switchyard.services.llm.openai_batch_service import OpenAiBatchService
from switchyard.services.llm.records.llm_spend import CallState, LlmCall, NoBudgetLeft, Requester
from tests.support.api_server import RunningApi, client_of, problem, serving, until_connected
from tests.support.eventually import eventually
from tests.support.llm_server import MODEL, FakeLlmServer
from tests.support.system import System

CHATS: Any = "/v1/chat/completions"
CHAT: Any = [{"role": "user", "content": "What is a tide?"}]


@pytest.fixture
async def api(system: System) -> AsyncIterator[RunningApi]:
    await system.start_worker("llm")
    async with serving(system.settings) as api:
        await until_connected(api)
        yield api


async def limited_client(system: System, api: RunningApi, **limits: Any) -> openai.AsyncOpenAI:
    """Return a client whose key has these limits."""
    created = await create_key(
        system.ledger, "team", [Scope.PUBLISH, Scope.READ], KeyLimits(**limits)
    )
    return client_of(api, created.key)


async def test_a_key_may_use_only_models_that_match_its_patterns(
    system: System, api: RunningApi, llm: FakeLlmServer
) -> None:
    async with await limited_client(system, api, models=("org/*",)) as client:
        assert [each.id async for each in await client.models.list()] == ["org/small"]
        await client.chat.completions.create(model="org/small", messages=CHAT)
        with pytest.raises(openai.PermissionDeniedError) as chat:
            await client.chat.completions.create(model=MODEL, messages=CHAT)
        with pytest.raises(openai.PermissionDeniedError):
            await client.embeddings.create(model="gpt-9", input="x")
        with pytest.raises(openai.PermissionDeniedError):
            await client.completions.create(model=MODEL, prompt="x")
        with pytest.raises(openai.PermissionDeniedError):
            await client.models.retrieve(MODEL)
        line = {"custom_id": "a", "method": "POST", "url": CHATS, "body": {"model": MODEL}}
        file = await client.files.create(file=("in", json.dumps(line).encode()), purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id, endpoint=CHATS, completion_window="24h"
        )
        await OpenAiBatchService(system.settings, system.ledger, system.registry).turn()
        batch = await client.batches.retrieve(batch.id)
    assert chat.value.code == "model_not_allowed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert batch.errors.data[0].code == "model_not_allowed"
    assert len(llm.requests) == 1


async def test_a_key_has_at_most_its_priority(system: System, api: RunningApi) -> None:
    async with await limited_client(system, api, max_priority=3) as client:
        raw = await client.chat.completions.with_raw_response.create(model=MODEL, messages=CHAT)
        job = await system.ledger.job_reads.require(raw.headers["x-job-id"])
        assert job.priority == 3
        with pytest.raises(openai.PermissionDeniedError) as refused:
            await client.chat.completions.create(
                model=MODEL, messages=CHAT, extra_headers={"X-Job-Priority": "4"}
            )
    assert refused.value.code == "priority_not_allowed"


async def test_a_keys_requests_per_minute_are_counted_at_every_endpoint(
    system: System, api: RunningApi
) -> None:
    async with await limited_client(system, api, requests_per_minute=3) as client:
        raw = await client.models.with_raw_response.list()
        assert raw.headers["x-ratelimit-limit-requests"] == "3"
        assert raw.headers["x-ratelimit-remaining-requests"] == "2"
        await client.files.list()
        await client.chat.completions.create(model=MODEL, messages=CHAT)
        with pytest.raises(openai.RateLimitError) as refused:
            await client.batches.list()
    assert refused.value.code == "rate_limit_exceeded"
    assert 0 < int(refused.value.response.headers["retry-after"]) <= 20


async def test_a_keys_tokens_per_minute_are_counted_by_actual_usage(
    system: System, api: RunningApi
) -> None:
    async with await limited_client(system, api, tokens_per_minute=1000) as client:
        for _ in range(2):  # by estimate alone, the second would be refused
            await client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=900)
        # 18 tokens were used, and none for the stored answer
        listed = await client.models.with_raw_response.list()
        assert 980 <= int(listed.headers["x-ratelimit-remaining-tokens"]) <= 1000
    async with await limited_client(system, api, tokens_per_minute=1000) as client:
        long_chat: Any = [{"role": "user", "content": "x" * 30_000}]
        stream = await client.chat.completions.create(model=MODEL, messages=long_chat, stream=True)
        assert [
            each async for each in stream
        ]  # more than one minute's tokens: admitted while the allowance is full
        with pytest.raises(openai.RateLimitError, match="tokens"):
            await client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=1000)


async def test_a_refused_request_uses_up_nothing_of_its_keys_limits(system: System) -> None:
    # BerriAI/litellm #39309: requests beyond the number that may run at once use up the rate.
    async with serving(system.settings, api_max_streams=1) as api:
        await until_connected(api)
        assert api.state.streams.take("somebody", 1)
        async with await limited_client(
            system, api, requests_per_minute=10, tokens_per_minute=1000
        ) as client:
            for stream in (False, True):
                with pytest.raises(openai.RateLimitError):
                    await client.chat.completions.create(model=MODEL, messages=CHAT, stream=stream)
            with pytest.raises(openai.RateLimitError):
                await client.embeddings.create(model=MODEL, input="x")
            listed = await client.models.with_raw_response.list()
    assert listed.headers["x-ratelimit-remaining-requests"] == "9"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_without_a_broker_uses_up_nothing_of_its_keys_limits(
    system: System, stream: bool
) -> None:
    async with (
        serving(system.settings, amqp_url=None) as api,
        await limited_client(system, api, requests_per_minute=10, tokens_per_minute=1000) as client,
    ):
        with pytest.raises(openai.InternalServerError) as refused:
            await client.chat.completions.create(model=MODEL, messages=CHAT, stream=stream)
        listed = await client.models.with_raw_response.list()
    assert refused.value.code == "no_broker"
    assert listed.headers["x-ratelimit-remaining-requests"] == "9"
    assert listed.headers["x-ratelimit-remaining-tokens"] == "1000"


async def test_a_request_for_a_full_lane_uses_up_no_tokens(system: System) -> None:
    async with serving(system.settings, llm_full_at=1, llm_slow_at=1, llm_ok_below=1) as api:
        await until_connected(api)
        await system.publish("hot.chat_completion", {"messages": CHAT})

        async def is_full() -> bool:
            queues = (await api.client.get("/backpressure")).json()
            return '"full"' in json.dumps(queues)

        await eventually(is_full, what="a full lane")
        async with await limited_client(system, api, tokens_per_minute=1000) as client:
            for stream in (False, True, False):
                with pytest.raises(openai.RateLimitError):
                    await client.chat.completions.create(
                        model=MODEL, messages=CHAT, max_tokens=900, stream=stream
                    )
            listed = await client.models.with_raw_response.list()
    assert int(listed.headers["x-ratelimit-remaining-tokens"]) >= 999


async def test_a_key_with_limits_is_valid_for_v1_alone(system: System, api: RunningApi) -> None:
    created = await create_key(system.ledger, "team", list(Scope), KeyLimits(max_priority=3))
    headers = {"Authorization": f"Bearer {created.key}"}
    for path in ("/jobs", "/dashboard", "/llm/spend"):
        answer = await api.client.get(path, headers=headers)
        assert answer.status_code in (303, 401, 403), path
    problem(await api.client.get("/jobs", headers=headers), 403, "forbidden")
    await system.ledger.api_keys.set_key_limits(created.id, None)
    record = await system.ledger.api_keys.get_api_key(created.id)
    assert record is not None
    assert record.limits is None


async def test_a_spent_budget_refuses_until_the_next_one_begins(
    system: System, api: RunningApi, llm: FakeLlmServer
) -> None:
    created = await create_key(
        system.ledger, "team", [Scope.PUBLISH], KeyLimits(budget_per_day=1.0, budget_per_month=9.0)
    )
    requester = Requester(source=f"api:{created.id}/nightly")
    call = LlmCall("c1", CallState.PAID, requester, "own", MODEL, {"prompt_tokens": 5}, 1.25)
    await LlmLedger(system.ledger).spending.settle_llm_call(call)
    async with client_of(api, created.key) as client:
        with pytest.raises(openai.RateLimitError) as refused:
            await client.chat.completions.create(model=MODEL, messages=CHAT)
    assert refused.value.code == "insufficient_quota"
    assert 0 < int(refused.value.response.headers["retry-after"]) <= 86_400
    assert llm.requests == []


async def test_calls_reserve_their_cost_in_both_budgets_of_their_key(
    ledger: Ledger,
) -> None:
    spending = LlmLedger(ledger).spending
    limits = KeyLimits(budget_per_day=2.0, budget_per_month=3.0)
    created = await create_key(ledger, "team", [Scope.PUBLISH], limits)
    requester = Requester(source=f"api:{created.id}")

    def call(name: str, cost: float, state: CallState = CallState.OPEN) -> LlmCall:
        return LlmCall(name, state, requester, "own", MODEL, {}, cost)

    assert await spending.reserve_llm_call(call("a", 1.5), per_day=None) is True
    refused = await spending.reserve_llm_call(call("b", 1.0), per_day=None)
    assert isinstance(refused, NoBudgetLeft)
    assert refused.seconds is not None
    assert 0 < refused.seconds <= 86_400
    await spending.settle_llm_call(call("a", 0.5, CallState.PAID))
    (day, _), (month, until_next) = await spending.api_key_budgets(created.id, limits)
    assert (day.spent, day.reserved, day.left) == (0.5, 0.0, 1.5)
    assert (month.spent, month.left) == (0.5, 2.5)
    assert 0 < until_next <= 31 * 86_400
    assert created.id in month.name
    # The sum of the day is that of all, whatever accounts there are.
    assert (await spending.llm_spent_today())[""].cost == 0.5


async def test_of_a_server_that_does_not_count_tokens_the_estimate_stays(ledger: Ledger) -> None:
    state: Any = SimpleNamespace(ledger=ledger)
    limits = KeyLimits(tokens_per_minute=1000)
    results: list[tuple[dict[str, Any], int]] = [
        ({"usage": {}}, 100),
        ({"usage": {"prompt_tokens": 18}}, 982),
        ({"usage": {}, "answer_reused": True}, 1000),
    ]
    for key, (result, remaining) in enumerate(results):
        await ledger.api_keys.take_allowance(str(key), limits, 900)
        await AdmittedRequest(state, str(key), 900).settle(result)
        allowance = await ledger.api_keys.take_allowance(str(key), limits, 0)
        assert allowance.tokens is not None
        assert remaining <= allowance.tokens <= remaining + 90  # 17 come back each second


def test_of_a_server_that_does_not_count_tokens_no_cost_is_said(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[models.m]\ninput = 1\noutput = 1\n")

    def cost_of(**result: Any) -> str | None:
        answer = LlmResult("job", LlmStatus.COMPLETED, {"model": "m", **result})
        return answer_headers(answer, Settings(llm_prices=prices)).get("X-Job-Cost")

    assert cost_of(usage={}) is None
    assert cost_of(usage={}, answer_reused=True) == "0.00000000 USD"
    assert cost_of(usage={"prompt_tokens": 11, "completion_tokens": 7}) == "0.00001800 USD"


async def test_a_refusal_for_tokens_says_when_they_are_available(ledger: Ledger) -> None:
    limits = KeyLimits(requests_per_minute=60, tokens_per_minute=600)
    keys = ledger.api_keys
    assert (await keys.take_allowance("k", limits, 500)).short_of is None
    refused = await keys.take_allowance("k", limits, 500)
    assert refused.short_of == "tokens"
    assert 30 < refused.retry_after <= 40  # 400 of 10 a second
    await keys.return_tokens("k", 450)
    allowed = await keys.take_allowance("k", limits, 500)
    assert allowed.short_of is None
    assert allowed.requests is not None
    assert 57 <= allowed.requests <= 59  # the refused call took no request
