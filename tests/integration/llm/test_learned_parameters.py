"""Parameters that a server refuses are learned once for the fleet, and kept in the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from switchyard.services.common.settings import LlmServer, Settings
from switchyard.services.engine.ledger import Ledger
from switchyard.services.llm.gate import Urgency
from switchyard.services.llm.ledger import llm_slots
from switchyard.services.llm.model_client import ModelClient
from tests.support.llm_server import FakeLlmServer
from tests.support.site import Exchange, Request

CHAT: Mapping[str, Any] = {
    "messages": [{"role": "user", "content": "What is a tide?"}],
    "max_tokens": 100,
    "temperature": 0,
}


def refuse_like_a_reasoning_model(exchange: Exchange, request: Request) -> None:
    """Take another name of the limit, and no temperature, as models that reason."""
    sent = request.json
    for name, advice in (
        ("max_tokens", "use 'max_completion_tokens' instead"),
        ("temperature", "only the default (1) value is supported"),
    ):
        if name in sent:
            message = f"Unsupported parameter: '{name}' is not supported with this model: {advice}"
            error = {"message": message, "code": "unsupported_parameter", "param": name}
            exchange.send_json(400, {"error": error})
            return
    exchange.server.owner.answer(exchange, request)


def settings(llm: FakeLlmServer, **values: Any) -> Settings:
    fields = {"name": "own", "base_url": llm.url, "model": "m", **values}
    return Settings(llm_providers=(LlmServer.model_validate(fields),))


async def count_calls(
    ledger: Ledger, client_settings: Settings, llm: FakeLlmServer, times: int = 1
) -> int:
    """Return how many calls a new process makes for `times` equal questions."""
    before = len(llm.requests)
    async with ModelClient.open(client_settings, ledger) as client:
        for _ in range(times):
            await client.answer(CHAT, urgency=Urgency(), timeout=10, fresh=True)
    return len(llm.requests) - before


async def test_what_one_process_has_learned_all_others_know(
    ledger: Ledger, llm: FakeLlmServer
) -> None:
    llm.always(refuse_like_a_reasoning_model)
    async with ModelClient.open(settings(llm), ledger) as running:
        await running.answer({"messages": CHAT["messages"]}, urgency=Urgency(), timeout=10)
        assert await count_calls(ledger, settings(llm), llm, 2) == 2 + len(
            ("a name", "a temperature")
        )
        before = len(llm.requests)
        await running.answer(CHAT, urgency=Urgency(), timeout=10, fresh=True)
        assert len(llm.requests) - before == 1
    assert await count_calls(ledger, settings(llm), llm) == 1, "after a restart"
    sent = llm.requests[-1].json
    assert sent["max_completion_tokens"] == 100
    assert "temperature" not in sent


async def test_learned_parameters_hold_neither_for_another_model_nor_against_settings(
    plain_ledger: Ledger, llm: FakeLlmServer
) -> None:
    llm.always(refuse_like_a_reasoning_model)
    await count_calls(plain_ledger, settings(llm), llm)
    llm.always(llm.answer)
    await count_calls(plain_ledger, settings(llm, model="another"), llm)
    assert llm.requests[-1].json["temperature"] == 0
    await count_calls(plain_ledger, settings(llm, max_tokens_name="max_tokens"), llm)
    assert llm.requests[-1].json["max_tokens"] == 100


async def test_a_refused_parameter_is_tried_again_after_a_time(
    plain_ledger: Ledger, llm: FakeLlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm.always(refuse_like_a_reasoning_model)
    await count_calls(plain_ledger, settings(llm), llm)
    llm.always(llm.answer)
    monkeypatch.setattr(llm_slots, "LEARNED_TTL", 0.0)
    await count_calls(plain_ledger, settings(llm), llm)
    assert llm.requests[-1].json["max_tokens"] == 100
