import asyncio

import pytest

from switchyard.services.common.shared_calls import SharedCalls


async def test_who_asks_for_the_same_at_once_shares_one_call() -> None:
    asked: list[str] = []
    answered = asyncio.Event()

    async def call(key: str) -> int:
        asked.append(key)
        await answered.wait()
        if key == "bad":
            raise ValueError(key)
        return len(asked)

    calls = SharedCalls(call)
    waiting = [asyncio.create_task(calls.result(key)) for key in ("a", "a", "b", "a", "bad", "bad")]
    await asyncio.sleep(0)
    waiting[0].cancel()  # the others go on
    await asyncio.sleep(0)
    answered.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert asked == ["a", "b", "bad"]
    assert [type(each) for each in results] == [
        asyncio.CancelledError, int, int, int, ValueError, ValueError,
    ]  # fmt: skip
    assert await calls.result("a") == 4  # asked again: the last answer is not kept
    with pytest.raises(ValueError, match="bad"):
        await calls.result("bad")
