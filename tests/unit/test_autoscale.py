"""How many processes `jobctl up --autoscale` wants: a pure function, and what is written for it."""

import pytest

from switchyard.cli.base.errors import WrongUsage
from switchyard.cli.system.autoscale import (
    START_COOLDOWN,
    KindLoad,
    ProcessRange,
    ScalingCooldowns,
    ScalingState,
    decide,
    idlest,
    parse_ranges,
)

COOLDOWNS = ScalingCooldowns(wait=10, calm=60)
BOUNDS = ProcessRange(1, 4)


def course(*looks: KindLoad, every: float = 5.0, span: ProcessRange = BOUNDS) -> list[int]:
    """What is wanted at each look, where what is wanted is done."""
    state, wanted = ScalingState(), []
    processes = looks[0].processes
    for number, look in enumerate(looks):
        seen = KindLoad(processes, look.slots, look.running, look.waited, look.server_limit)
        verdict = decide(seen, span, state, COOLDOWNS, 1_000 + number * every)
        state, processes = verdict.state, verdict.processes
        wanted.append(processes)
    return wanted


def busy(waited: float = 30, processes: int = 1, server_limit: int | None = None) -> KindLoad:
    return KindLoad(processes, 4, 4 * processes, waited, server_limit)


def idle(processes: int = 1, running: int = 0, waited: float = 0) -> KindLoad:
    return KindLoad(processes, 4, running, waited)


def test_one_more_is_started_at_a_time_and_gets_its_time_to_begin() -> None:
    wanted = course(*[busy()] * 12)
    assert wanted[:4] == [2, 2, 2, 3]  # START_COOLDOWN is three looks
    assert wanted[-1] == BOUNDS.maximum
    assert START_COOLDOWN == 15


def test_a_wait_that_is_short_starts_nothing() -> None:
    assert set(course(*[busy(waited=9)] * 20)) == {1}


def test_one_is_retired_after_a_calm_while_and_never_the_last() -> None:
    wanted = course(*[idle(processes=3)] * 40)
    assert wanted[:12] == [3] * 12
    assert wanted[12] == 2
    assert wanted[-1] == 1
    assert min(wanted) == BOUNDS.minimum


def test_a_moment_of_work_begins_the_calm_anew_and_nothing_comes_and_goes() -> None:
    waves = [idle(2), idle(2), busy(waited=6, processes=2)] * 30
    assert set(course(*waves)) == {2}


def test_slots_that_are_needed_are_kept_although_nobody_waits() -> None:
    assert set(course(*[idle(processes=3, running=7)] * 40)) == {3}


def test_no_more_processes_than_their_servers_take() -> None:
    assert max(course(*[busy(server_limit=7)] * 20)) == 2  # seven at once, four by each process
    assert course(busy(processes=4, server_limit=4))[0] == 1
    asked = ProcessRange(2, 4)  # two were asked for, at least
    assert max(course(*[busy(server_limit=1)] * 9, span=asked)) == 2


def test_a_kind_that_is_seldom_needed_has_no_process_until_a_job_has_waited() -> None:
    wanted = course(*[idle()] * 14, *[busy()] * 2, span=ProcessRange(0, 4))
    assert wanted[:13] == [1] * 12 + [0]
    assert wanted[14] == 1


def test_bounds_that_are_broken_are_kept_at_once() -> None:
    assert course(idle(processes=0), span=ProcessRange(2, 4)) == [2]
    assert course(busy(processes=9)) == [4]


def test_who_retires_has_the_least_to_finish_and_is_the_youngest_of_equals() -> None:
    names = ["llm", "llm-2", "llm-3", "llm-4"]
    assert idlest(names, {"llm": 2, "llm-2": 1, "llm-3": 3, "llm-4": 2}, 2) == ["llm-2", "llm-4"]
    assert idlest(names, {"llm": 1}, 1) == ["llm-4"]
    assert idlest(names, {}, 0) == idlest(names, {}, -1) == []


def test_what_is_written_names_kinds_and_bounds() -> None:
    kinds = ["ingest", "llm"]
    assert parse_ranges(["llm=1..6"], kinds, 64) == {"llm": ProcessRange(1, 6)}
    assert parse_ranges(["all=1..2", "llm=0..6"], kinds, 64) == {
        "ingest": ProcessRange(1, 2),
        "llm": ProcessRange(0, 6),
    }


@pytest.mark.parametrize("text", ["llm", "llm=4", "llm=6..1", "llm=1..99", "x=1..2", "llm=0..0"])
def test_what_can_not_be_meant_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(WrongUsage, match="--autoscale"):
        parse_ranges([text], ["llm"], 64)
