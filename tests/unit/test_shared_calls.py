import asyncio

import pytest

from switchyard.services.common.shared_calls import SharedCalls


async def test_simultaneous_callers_of_one_key_share_one_call() -> None:
    called_keys: list[str] = []
    may_answer = asyncio.Event()

    async def call(key: str) -> int:
        called_keys.append(key)
        await may_answer.wait()
        if key == "bad":
            raise ValueError(key)
        return len(called_keys)

    calls = SharedCalls(call)
    tasks = [asyncio.create_task(calls.result(key)) for key in ("a", "a", "b", "a", "bad", "bad")]
    await asyncio.sleep(0)
    tasks[0].cancel()  # the other callers still get the answer
    await asyncio.sleep(0)
    may_answer.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert called_keys == ["a", "b", "bad"]
    assert [type(each) for each in results] == [
        asyncio.CancelledError, int, int, int, ValueError, ValueError,
    ]  # fmt: skip
    assert await calls.result("a") == 4  # called again, because answers are not cached
    with pytest.raises(ValueError, match="bad"):
        await calls.result("bad")
