import asyncio
from collections.abc import AsyncGenerator, Hashable
from dataclasses import dataclass, field

import pytest
from starlette.types import Message

from switchyard.api.http import event_stream
from switchyard.api.http.event_stream import AdmissionWatch, EventStream
from switchyard.api.http.problems import Problem


async def failing() -> AsyncGenerator[bytes, None]:
    raise ValueError("no page")
    yield b""


async def test_a_stream_that_fails_ends_at_once_though_a_cancellation_is_forgotten() -> None:
    asked = []

    async def receive() -> Message:
        asked.append("receive")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if len(asked) > 1:
                raise
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        await asyncio.sleep(0)  # `receive` is waited for by now

    with pytest.raises(ValueError, match="no page"):
        async with asyncio.timeout(10):
            await EventStream(failing())({"type": "http", "state": {}}, receive, send)
    assert asked == ["receive", "receive"]


@dataclass
class Counted:
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

    async def once_more(self) -> None:
        self.checked.clear()
        await self.checked.wait()


@pytest.fixture
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "ADMISSION_INTERVAL", 0.001)


@pytest.mark.usefixtures("quick_checks")
async def test_streams_of_one_key_are_checked_once_for_all_and_end_together() -> None:
    watch, other = AdmissionWatch(), Counted("another key")
    shared = [Counted("a key") for _ in range(100)]
    async with asyncio.timeout(10):
        waiting = [asyncio.create_task(watch.wait_for_refusal(each)) for each in shared]
        unaffected = asyncio.create_task(watch.wait_for_refusal(other))
        await shared[0].once_more()
        assert not any(each.checks for each in shared[1:])
        shared[0].is_valid = False
        await asyncio.gather(*waiting)
        await other.once_more()
        assert not unaffected.done()
        again = Counted("a key")
        joined = asyncio.create_task(watch.wait_for_refusal(again))
        await again.once_more()
        assert not joined.done()
        for each in (joined, unaffected):
            each.cancel()
        await asyncio.gather(joined, unaffected, return_exceptions=True)


@pytest.mark.usefixtures("quick_checks")
async def test_checks_go_on_for_the_others_when_the_first_stream_ends_and_stop_with_the_last() -> (
    None
):
    watch, first, second = AdmissionWatch(), Counted("a key"), Counted("a key")
    async with asyncio.timeout(10):
        waiting = [asyncio.create_task(watch.wait_for_refusal(each)) for each in (first, second)]
        await first.once_more()
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        await first.once_more()
        waiting[1].cancel()
        await asyncio.gather(waiting[1], return_exceptions=True)
    checks = first.checks
    everything = asyncio.all_tasks() - {asyncio.current_task()}
    assert not everything
    assert (first.checks, second.checks) == (checks, 0)
