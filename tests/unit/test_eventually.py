"""How tests wait."""

import pytest

from tests.support.eventually import eventually


@pytest.mark.parametrize(("moves", "arrives"), [(12, True), (6, False)])
async def test_with_progress_only_a_standstill_ends_the_wait(moves: int, arrives: bool) -> None:
    asked = 0

    def has_arrived() -> bool:
        nonlocal asked
        asked += 1
        return asked == 12  # some 0.35 s

    waiting = eventually(has_arrived, 0.12, "the end", progress=lambda: min(asked, moves))
    if arrives:
        assert await waiting
    else:
        with pytest.raises(AssertionError, match="stands still at 6"):
            await waiting
