"""Hedges: a second request for a hot question whose first answer is late."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.metric_names import LLM_HEDGES
from switchyard.services.llm.gate import Urgency
from switchyard.services.llm.hedges import MIN_CALLS
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.model_client import ModelClient
from tests.support import llm_server
from tests.support.llm_server import FakeLlmServer
from tests.support.site import held

QUESTION = {"messages": [{"role": "user", "content": "?"}], "max_tokens": 7}
BACKFILL = Urgency(lane=3)


def settings(llm: FakeLlmServer, tmp_path: Path, share: float) -> Settings:
    options = {"llm_base_url": llm.url, "llm_timeout": 60, "data_dir": tmp_path}
    return Settings.model_validate({**options, "llm_hedge_share": share})


@pytest.mark.parametrize(
    ("share", "urgency", "calls"), [(0.5, Urgency(), 2), (0.5, BACKFILL, 1), (0.0, Urgency(), 1)]
)
async def test_a_late_hot_call_gets_a_second_one_and_both_are_paid_for(
    plain_ledger: Ledger,
    llm: FakeLlmServer,
    tmp_path: Path,
    share: float,
    urgency: Urgency,
    calls: int,
) -> None:
    may_answer = threading.Event()
    try:
        async with ModelClient.open(settings(llm, tmp_path, share), plain_ledger) as client:
            for _ in range(MIN_CALLS):
                client._hedges.observe_latency(0.5)
                client._hedges.next_hedge_delay()
            if calls == 2:
                llm.next(held(may_answer, llm_server.answers("late")))
            llm.always(llm_server.answers("quick"))
            answer, _ = await client.answer(QUESTION, urgency=urgency, timeout=30)
            assert answer.text == "quick"
            assert len(llm.requests) == calls
            (row,) = await LlmLedger(plain_ledger).spending.llm_spend("day")
            assert row.calls == calls
            ((metric, samples),) = client.metric_samples()
            assert metric is LLM_HEDGES
            assert sum(samples.values()) == calls - 1
            (report,) = await LlmLedger(plain_ledger).slots.llm_servers()
            assert report.in_flight == 0, "the slot of the loser is free again"
    finally:
        may_answer.set()
