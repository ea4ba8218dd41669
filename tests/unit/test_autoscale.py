"""How many processes `jobctl up --autoscale` wants (a pure function), and its option's syntax."""

import pytest

from switchyard.cli.base.errors import WrongUsage
from switchyard.cli.system.autoscale import (
    START_COOLDOWN,
    KindLoad,
    ProcessRange,
    ScalingState,
    ScalingThresholds,
    decide,
    idlest,
    parse_ranges,
)

THRESHOLDS = ScalingThresholds(wait=10, calm=60)
BOUNDS = ProcessRange(1, 4)


def simulate(*loads: KindLoad, interval: float = 5.0, bounds: ProcessRange = BOUNDS) -> list[int]:
    """Return the number of processes after each decision, if each is carried out."""
    state, process_counts = ScalingState(), []
    processes = loads[0].processes
    for number, load in enumerate(loads):
        actual_load = KindLoad(processes, load.slots, load.running, load.waited, load.server_limit)
        verdict = decide(actual_load, bounds, state, THRESHOLDS, 1_000 + number * interval)
        state, processes = verdict.state, verdict.processes
        process_counts.append(processes)
    return process_counts


def busy_load(waited: float = 30, processes: int = 1, server_limit: int | None = None) -> KindLoad:
    return KindLoad(processes, 4, 4 * processes, waited, server_limit)


def idle_load(processes: int = 1, running: int = 0, waited: float = 0) -> KindLoad:
    return KindLoad(processes, 4, running, waited)


def test_processes_are_started_one_at_a_time_with_a_cooldown() -> None:
    process_counts = simulate(*[busy_load()] * 12)
    assert process_counts[:4] == [2, 2, 2, 3]  # START_COOLDOWN lasts three intervals
    assert process_counts[-1] == BOUNDS.maximum
    assert START_COOLDOWN == 15


def test_a_short_wait_starts_no_process() -> None:
    assert set(simulate(*[busy_load(waited=9)] * 20)) == {1}


def test_idle_processes_are_retired_one_by_one_down_to_the_minimum() -> None:
    process_counts = simulate(*[idle_load(processes=3)] * 40)
    assert process_counts[:12] == [3] * 12
    assert process_counts[12] == 2
    assert process_counts[-1] == 1
    assert min(process_counts) == BOUNDS.minimum


def test_waves_of_work_neither_start_nor_retire_processes() -> None:
    waves = [idle_load(2), idle_load(2), busy_load(waited=6, processes=2)] * 30
    assert set(simulate(*waves)) == {2}


def test_processes_whose_slots_are_in_use_are_kept() -> None:
    assert set(simulate(*[idle_load(processes=3, running=7)] * 40)) == {3}


def test_the_model_servers_limit_bounds_the_processes() -> None:
    assert (
        max(simulate(*[busy_load(server_limit=7)] * 20)) == 2
    )  # the server takes 7 calls, each process makes 4
    assert simulate(busy_load(processes=4, server_limit=4))[0] == 1
    at_least_two = ProcessRange(2, 4)
    assert max(simulate(*[busy_load(server_limit=1)] * 9, bounds=at_least_two)) == 2


def test_a_kind_that_is_seldom_needed_has_no_process_until_a_job_has_waited() -> None:
    process_counts = simulate(*[idle_load()] * 14, *[busy_load()] * 2, bounds=ProcessRange(0, 4))
    assert process_counts[:13] == [1] * 12 + [0]
    assert process_counts[14] == 1


def test_a_count_outside_its_bounds_is_corrected_at_once() -> None:
    assert simulate(idle_load(processes=0), bounds=ProcessRange(2, 4)) == [2]
    assert simulate(busy_load(processes=9)) == [4]


def test_processes_with_the_fewest_jobs_retire_and_of_equals_the_youngest() -> None:
    names = ["llm", "llm-2", "llm-3", "llm-4"]
    assert idlest(names, {"llm": 2, "llm-2": 1, "llm-3": 3, "llm-4": 2}, 2) == ["llm-2", "llm-4"]
    assert idlest(names, {"llm": 1}, 1) == ["llm-4"]
    assert idlest(names, {}, 0) == idlest(names, {}, -1) == []


def test_ranges_are_parsed_by_worker_kind() -> None:
    kinds = ["ingest", "llm"]
    assert parse_ranges(["llm=1..6"], kinds, 64) == {"llm": ProcessRange(1, 6)}
    assert parse_ranges(["all=1..2", "llm=0..6"], kinds, 64) == {
        "ingest": ProcessRange(1, 2),
        "llm": ProcessRange(0, 6),
    }


@pytest.mark.parametrize("text", ["llm", "llm=4", "llm=6..1", "llm=1..99", "x=1..2", "llm=0..0"])
def test_an_invalid_range_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(WrongUsage, match="--autoscale"):
        parse_ranges([text], ["llm"], 64)
