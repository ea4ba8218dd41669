"""What the dashboard shows of model servers over time: calls allowed each minute, and pauses."""

from dataclasses import replace

from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.lane_history import KEPT_FOR, MINUTE
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.operations import record_minute
from switchyard.services.llm.records.llm_servers import LlmMinute, LlmServerState
from tests.integration.llm.test_gate import take_slot

START = 1_790_000_040.0
"""The beginning of a minute."""


async def test_a_pause_is_recorded_with_its_end_and_reason_however_often_it_is_prolonged(
    ledger: Ledger,
) -> None:
    repositories, pause_begins = LlmLedger(ledger), []

    async def end_call(seconds: float, reason: str) -> None:
        def change(state: LlmServerState, _: int, now: float) -> LlmServerState:
            pause_begins.append(now)
            return replace(state, paused_until=now + seconds, pause_reason=reason)

        await repositories.slots.end_llm_slot("default", "slot", change)

    assert await take_slot(ledger, "slot")
    assert await repositories.history.pauses(0) == []
    await repositories.slots.end_llm_slot("default", "slot", lambda state, *_: state)
    assert await repositories.history.pauses(0) == []
    await end_call(100, "too many requests")
    await end_call(500, "still too many")
    (pause,) = await repositories.history.pauses(0)
    assert (pause.server, pause.began_at, pause.reason) == (
        "default",
        pause_begins[0],
        "still too many",
    )
    assert pause.until == pause_begins[1] + 500
    ended = await repositories.slots.end_llm_pause("default")
    assert ended is not None
    (pause,) = await repositories.history.pauses(0)
    assert pause_begins[1] <= pause.until < pause_begins[1] + 100
    assert pause.reason == "still too many"
    await end_call(50, "no answer")
    assert [each.reason for each in await repositories.history.pauses(0)] == [
        "no answer",
        "still too many",
    ]
    assert await repositories.history.pauses(pause_begins[2] + 60) == []


async def test_calls_allowed_are_recorded_each_minute_and_deleted_after_days(
    ledger: Ledger,
) -> None:
    repositories = LlmLedger(ledger)
    settings = Settings(llm_base_url="http://there/v1", llm_concurrency_max=2)
    await record_minute(settings, ledger)
    assert await repositories.history.minutes(0) == []
    await take_slot(ledger, "slot", limit=3)
    before = ledger.clock.time()
    await record_minute(settings, ledger)
    await record_minute(settings, ledger)
    minutes = await repositories.history.minutes(0)
    assert {(each.server, each.calls_allowed, each.in_flight) for each in minutes} == {
        ("default", 2, 1)  # as these settings have it
    }
    assert before - MINUTE < minutes[0].at <= before
    assert {each.at % MINUTE for each in minutes} == {0.0}

    def minute_at(time: float) -> LlmMinute:
        return LlmMinute(time, "other", 5, 4)

    old, new = minute_at(START - KEPT_FOR - MINUTE), minute_at(START)
    await repositories.history.add_minute([old, new], START - MINUTE)
    assert (await repositories.history.minutes(0))[:2] == [old, new]
    await repositories.history.add_minute([replace(new, in_flight=9)], START)
    assert (await repositories.history.minutes(0))[0] == new
