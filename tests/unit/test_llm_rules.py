"""The default rule does what requirement L8 asks, with a server that batches, in simulated time."""

from __future__ import annotations

import pytest

from benchmarks.llm import CONTENDERS, instantly, run


@pytest.mark.parametrize("name", ["adaptive, 5 to 50", "adaptive, 5 to 200"])
def test_the_default_rule_keeps_requirement_l8_and_more(name: str) -> None:
    rule, bounds = CONTENDERS[name]
    outcome = instantly(run(rule, bounds, seed=1))
    assert outcome.timeouts < 0.5
    assert round(outcome.use, 3) >= 0.95
    assert outcome.p99 < 30
    assert outcome.answered / 600 > 10
    assert outcome.deepest < 500


def test_one_limit_does_not_fit_all() -> None:
    few = instantly(run(*CONTENDERS["fixed 10"], seed=1))
    many = instantly(run(*CONTENDERS["fixed 200"], seed=1))
    assert few.use < 0.5
    assert many.timeouts > 0.5
