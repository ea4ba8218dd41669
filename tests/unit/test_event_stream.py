import asyncio
from collections.abc import AsyncGenerator, Hashable
from dataclasses import dataclass, field

import pytest
from starlette.types import Message

from switchyard.api.http import event_stream
from switchyard.api.http.event_stream import AdmissionWatch, EventStream
from switchyard.api.http.problems import Problem


async def fail() -> AsyncGenerator[bytes, None]:
    raise ValueError("no page")
    yield b""


async def test_a_failed_stream_ends_at_once_although_its_receiver_ignores_a_cancellation() -> None:
    calls = []

    async def receive() -> Message:
        calls.append("receive")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if len(calls) > 1:
                raise
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        await asyncio.sleep(0)  # `receive` is waited for by now

    with pytest.raises(ValueError, match="no page"):
        async with asyncio.timeout(10):
            await EventStream(fail())({"type": "http", "state": {}}, receive, send)
    assert calls == ["receive", "receive"]


@dataclass
class CountingAdmission:
    """An admission that counts how often it is checked."""

    identity: Hashable
    checks: int = 0
    is_valid: bool = True
    checked: asyncio.Event = field(default_factory=asyncio.Event)

    async def check(self) -> None:
        self.checks += 1
        self.checked.set()
        if not self.is_valid:
            raise Problem("unauthorized", "the API key is unknown or revoked")

    async def await_next_check(self) -> None:
        self.checked.clear()
        await self.checked.wait()


@pytest.fixture
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "ADMISSION_INTERVAL", 0.001)


@pytest.mark.usefixtures("quick_checks")
async def test_streams_of_one_key_share_their_checks_and_end_together() -> None:
    watch, other_admission = AdmissionWatch(), CountingAdmission("another key")
    admissions = [CountingAdmission("a key") for _ in range(100)]
    async with asyncio.timeout(10):
        tasks = [asyncio.create_task(watch.wait_for_refusal(each)) for each in admissions]
        unaffected = asyncio.create_task(watch.wait_for_refusal(other_admission))
        await admissions[0].await_next_check()
        assert not any(each.checks for each in admissions[1:])
        admissions[0].is_valid = False
        await asyncio.gather(*tasks)
        await other_admission.await_next_check()
        assert not unaffected.done()
        later_admission = CountingAdmission("a key")
        later_task = asyncio.create_task(watch.wait_for_refusal(later_admission))
        await later_admission.await_next_check()
        assert not later_task.done()
        for each in (later_task, unaffected):
            each.cancel()
        await asyncio.gather(later_task, unaffected, return_exceptions=True)


@pytest.mark.usefixtures("quick_checks")
async def test_checks_go_on_until_the_last_stream_of_a_key_ends() -> None:
    watch, first, second = AdmissionWatch(), CountingAdmission("a key"), CountingAdmission("a key")
    async with asyncio.timeout(10):
        tasks = [asyncio.create_task(watch.wait_for_refusal(each)) for each in (first, second)]
        await first.await_next_check()
        tasks[0].cancel()
        await asyncio.gather(tasks[0], return_exceptions=True)
        await first.await_next_check()
        tasks[1].cancel()
        await asyncio.gather(tasks[1], return_exceptions=True)
    checks = first.checks
    remaining_tasks = asyncio.all_tasks() - {asyncio.current_task()}
    assert not remaining_tasks
    assert (first.checks, second.checks) == (checks, 0)
