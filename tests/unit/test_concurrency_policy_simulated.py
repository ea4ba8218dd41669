"""The default policy meets requirement L8 with a simulated server that batches."""

from __future__ import annotations

import pytest

from benchmarks.llm import CONTENDERS, KINDS, SMALL, instantly, run, small_machine
from switchyard.services.llm.concurrency_policy import Bounds, FixedPolicy


@pytest.mark.parametrize("name", ["adaptive, 1 to 50", "adaptive, 1 to 200"])
def test_the_default_policy_exceeds_requirement_l8(name: str) -> None:
    policy, bounds = CONTENDERS[name]
    outcome = instantly(run(policy, bounds, seed=1))
    assert outcome.timeouts < 0.5
    assert round(outcome.use, 3) >= 0.95
    assert outcome.p99 < 30
    assert outcome.answered / 600 > 10
    assert outcome.deepest < 500


@pytest.mark.parametrize("at_once", SMALL)
@pytest.mark.parametrize("kind", KINDS)
def test_the_default_policy_finds_the_limit_of_a_small_server(at_once: int, kind: str) -> None:
    machine, count = small_machine(kind, at_once), 20 * at_once
    outcome, with_right_limit = (
        instantly(run(policy, bounds, seed=1, machine=machine, count=count))
        for policy, bounds in (
            CONTENDERS["adaptive, 1 to 50"],
            (FixedPolicy(), Bounds(at_once, at_once, at_once)),
        )
    )
    assert outcome.timeouts < 0.5
    assert outcome.answered_in_time > 0.95 * with_right_limit.answered_in_time
    assert outcome.limit <= (at_once if kind == "queues" else 2 * at_once)


def test_a_fixed_limit_is_too_low_or_too_high() -> None:
    with_low_limit = instantly(run(*CONTENDERS["fixed 10"], seed=1, minutes=5))
    with_high_limit = instantly(run(*CONTENDERS["fixed 200"], seed=1, minutes=5))
    assert with_low_limit.use < 0.5
    assert with_high_limit.timeouts > 0.5
