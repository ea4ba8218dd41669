"""Requests that one server refuses, and another one may answer."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.services.common.settings import LlmServer, Settings
from switchyard.services.engine.ledger import Ledger
from switchyard.services.llm.gate import Urgency
from switchyard.services.llm.llm_errors import LlmContextTooLong, LlmDeclined, LlmRefused
from switchyard.services.llm.model_client import ModelClient
from tests.support.llm_server import FakeLlmServer, answers, fails
from tests.support.site import Behaviour

CHAT = {"messages": [{"role": "user", "content": "What is a tide?"}]}
TOO_LONG = fails(400, "This model's maximum context length is 4096 tokens")
DECLINED = answers("No", finish_reason="content_filter")


@pytest.mark.parametrize(
    ("behaviour", "first_overrides", "second_overrides", "error"),
    [
        (TOO_LONG, {}, {}, None),
        (DECLINED, {}, {}, None),
        (TOO_LONG, {"context_length": 4096}, {"model": "small", "context_length": 8192}, None),
        (TOO_LONG, {"context_length": 4096}, {"context_length": 4096}, LlmContextTooLong),
        (TOO_LONG, {}, {"model": "small"}, LlmContextTooLong),
        (TOO_LONG, {}, {"takes_over": ["content_filter"]}, LlmContextTooLong),
        (TOO_LONG, {}, {"aliases": []}, LlmContextTooLong),
        (DECLINED, {}, {"model": "small"}, LlmDeclined),
        (DECLINED, {}, {"takes_over": ["context_length"]}, LlmDeclined),
        (fails(400, "no such format"), {}, {}, LlmRefused),
    ],
)
async def test_the_next_server_takes_over_what_its_model_may_answer(
    plain_ledger: Ledger,
    llm: FakeLlmServer,
    behaviour: Behaviour,
    first_overrides: dict[str, Any],
    second_overrides: dict[str, Any],
    error: type[LlmRefused] | None,
) -> None:
    with FakeLlmServer() as other:
        first = {"name": "own", "base_url": llm.url, "model": "small", **first_overrides}
        second = {"name": "large", "base_url": other.url, "model": "large", "order": 1}
        servers = [first, {**second, "aliases": ["small"], **second_overrides}]
        providers = tuple(map(LlmServer.model_validate, servers))
        llm.always(behaviour)
        async with ModelClient.open(Settings(llm_providers=providers), plain_ledger) as client:
            call = client.answer(CHAT, urgency=Urgency(), timeout=10, model="small")
            if error is None:
                assert (await call)[0].text
            else:
                with pytest.raises(error):
                    await call
            assert [len(llm.requests), len(other.requests)] == [1, error is None]


async def test_a_declined_request_does_not_wait_for_an_unavailable_server(
    plain_ledger: Ledger, llm: FakeLlmServer
) -> None:
    """Asked again, a declined request would be declined and charged again. A request that is too
    long for one server waits for the other."""
    with FakeLlmServer() as other:
        other.always(fails(503, Retry_After="60"))
        providers = (
            LlmServer(name="own", base_url=llm.url, model="small"),
            LlmServer(name="large", base_url=other.url, model="large", aliases=("small",), order=1),
        )
        async with ModelClient.open(Settings(llm_providers=providers), plain_ledger) as client:
            for behaviour in (DECLINED, TOO_LONG):
                llm.next(behaviour)
                with pytest.raises(Exception, match=r"503|declines|paused") as caught:
                    await client.answer(CHAT, urgency=Urgency(), timeout=10, model="small")
                assert isinstance(caught.value, LlmRefused) == (behaviour is DECLINED), caught.value
