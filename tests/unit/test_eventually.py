"""Waiting in tests: `eventually` and its progress."""

import pytest

from tests.support.eventually import eventually


@pytest.mark.parametrize(("most_progress", "succeeds"), [(12, True), (6, False)])
async def test_with_progress_only_a_standstill_ends_the_wait(
    most_progress: int, succeeds: bool
) -> None:
    calls = 0

    def is_twelfth_call() -> bool:
        nonlocal calls
        calls += 1
        return calls == 12  # after about 0.35 s, longer than the limit of 0.12 s

    waiting = eventually(
        is_twelfth_call, 0.12, "the end", progress=lambda: min(calls, most_progress)
    )
    if succeeds:
        assert await waiting
    else:
        with pytest.raises(AssertionError, match="stands still at 6"):
            await waiting
