"""Due times of schedules: changes of summer time, outages, jitter, and the schedule file."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.schedules.entry import ScheduleEntry
from switchyard.services.engine.schedules.file import InvalidScheduleFile, read_file
from switchyard.services.engine.schedules.rule import (
    CATCH_UP_WINDOW,
    CronRule,
    InvalidSchedule,
    with_jitter,
)
from switchyard.services.engine.schedules.service import default_entries
from switchyard.services.engine.wings import job_modules
from switchyard.services.pipeline.operations import DEFAULT_SCHEDULES

BERLIN = ZoneInfo("Europe/Berlin")


def timestamp(text: str, zone: ZoneInfo = BERLIN, *, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


def due_times(cron: str, first: float, last: float, zone: str = "Europe/Berlin") -> list[str]:
    rule = CronRule.parse(cron, zone)
    shown = []
    due = rule.after(first)
    while due <= last:
        shown.append(datetime.fromtimestamp(due, ZoneInfo(zone)).strftime("%d %H:%M %Z"))
        due = rule.after(due)
    return shown


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("30 2 * * *", ["28 02:30 CET", "29 03:00 CEST", "30 02:30 CEST"]),
        ("0 1 * * *", ["28 01:00 CET", "29 01:00 CET", "30 01:00 CEST"]),
    ],
)
def test_a_time_that_spring_skips_counts_at_the_end_of_the_gap(
    cron: str, expected: list[str]
) -> None:
    assert due_times(cron, timestamp("2026-03-28"), timestamp("2026-03-30 12:00")) == expected


def test_a_time_that_comes_twice_in_autumn_counts_once() -> None:
    result = due_times("30 2 * * *", timestamp("2026-10-24"), timestamp("2026-10-26 12:00"))
    assert result == ["24 02:30 CEST", "25 02:30 CEST", "26 02:30 CET"]
    # The same holds if the rule is asked within the second of the two hours.
    from_second_hour = due_times(
        "30 2 * * *", timestamp("2026-10-25 02:15", fold=1), timestamp("2026-10-26 12:00")
    )
    assert from_second_hour == ["26 02:30 CET"]


def test_an_interval_is_due_in_both_hours_of_autumn() -> None:
    result = due_times("*/30 * * * *", timestamp("2026-10-25 01:45"), timestamp("2026-10-25 03:00"))
    assert result == [
        "25 02:00 CEST",
        "25 02:30 CEST",
        "25 02:00 CET",
        "25 02:30 CET",
        "25 03:00 CET",
    ]
    spring = due_times("*/30 * * * *", timestamp("2026-03-29 01:15"), timestamp("2026-03-29 03:30"))
    assert spring == ["29 01:30 CET", "29 03:00 CEST", "29 03:30 CEST"]


@given(
    cron=st.sampled_from(["30 2 * * *", "*/7 * * * *", "0 0 * * *", "15 1-3 * * *", "0 */2 * * 0"]),
    zone=st.sampled_from(
        ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "UTC"]
    ),
    start=st.integers(1_767_225_600, 1_798_761_600),
    pause=st.integers(1, 200_000),
)
@settings(max_examples=150)
def test_due_times_do_not_depend_on_the_starting_time(
    cron: str, zone: str, start: int, pause: int
) -> None:
    """So a scheduler that takes over finds the same due times as the one before."""
    rule = CronRule.parse(cron, zone)
    first = rule.after(start)
    second = rule.after(first)
    assert start < first < second
    between = first + min(pause, second - first - 1)
    assert rule.after(between) == second


@pytest.mark.parametrize(
    ("cron", "zone", "reason"),
    [
        ("61 * * * *", "UTC", "minute"),
        ("* * * *", "UTC", "fields"),
        ("0 0 30 2 *", "UTC", "day-of-month"),
        ("0 0 * * 5L/2", "UTC", "day-of-week"),
        ("0 0 * * *", "Europe/Atlantis", "time zone"),
        ("0 0 * * *", "Europe", "time zone"),
        ("0 0 * * *", "../../etc/passwd", "time zone"),
    ],
)
def test_an_invalid_rule_is_refused_with_a_reason(cron: str, zone: str, reason: str) -> None:
    with pytest.raises(InvalidSchedule, match=reason):
        CronRule.parse(cron, zone)


@pytest.mark.parametrize(
    ("cron", "suggestion"),
    [
        ("@daily", "0 0 * * *"),
        ("@Hourly", "0 * * * *"),
        ("0 6 ? * 1", "0 6 * * 1"),
        ("0 6 * * 6-0", "0 6 * * 6,0"),
        ("0 6 * * fri-mon", "0 6 * * 5-6,0-1"),
        ("0 22-2 * * *", "0 22-23,0-2 * * *"),
        ("0 6 1 nov-feb *", "0 6 1 11-12,1-2 *"),
        ("50-10/10 * * * *", "50,0,10 * * * *"),
    ],
)
def test_the_refusal_of_a_rule_suggests_a_valid_form(cron: str, suggestion: str) -> None:
    with pytest.raises(InvalidSchedule) as refused:
        CronRule.parse(cron, "UTC")
    assert f"write '{suggestion}'" in str(refused.value)
    CronRule.parse(suggestion, "UTC")


@pytest.mark.parametrize("cron", ["@reboot", "* * * *", "0 99 * * *", "0 0 30 2 ?", "x-y * * * *"])
def test_no_invalid_form_is_suggested(cron: str) -> None:
    with pytest.raises(InvalidSchedule) as refused:
        CronRule.parse(cron, "UTC")
    assert "write '" not in str(refused.value)


@pytest.mark.parametrize(
    ("cron", "expected_note", "days"),
    [
        ("0 6 1 * 1", "fit either of them", ["30", "01", "07"]),
        ("0 6 */2 * 1", "fit both", ["07", "21", "11"]),
        ("0 6 * * 1", None, ["30", "07", "14"]),
    ],
)
def test_a_note_says_how_days_of_month_and_week_combine(
    cron: str, expected_note: str | None, days: list[str]
) -> None:
    rule = CronRule.parse(cron, "UTC")
    note = rule.days_note
    assert (note is None) if expected_note is None else (note is not None and expected_note in note)
    start = datetime(2026, 11, 25, tzinfo=UTC).timestamp()
    result = [datetime.fromtimestamp(each, UTC) for each in rule.next_times(start, 3)]
    assert [f"{each:%d}" for each in result] == days


# --- due times that have passed -----------------------------------------------------------------


def test_a_change_of_schedulers_misses_nothing() -> None:
    rule = CronRule.parse("*/10 * * * * *", "UTC")
    passed = rule.due_between(1000.0, 1045.0, jitter=0, grace=0, name="x")
    assert (passed.fired, passed.missed, passed.next_at) == (
        (1000.0, 1010.0, 1020.0, 1030.0, 1040.0),
        None,
        1050.0,
    )


def test_after_an_outage_the_last_due_time_is_fired_and_the_others_are_missed() -> None:
    rule = CronRule.parse("0 * * * *", "UTC")
    passed = rule.due_between(3600.0, 5 * 3600 + 1200.0, jitter=0, grace=3600, name="x")
    assert (passed.fired, passed.missed, passed.next_at) == ((18000.0,), (3600.0, 4), 21600.0)
    beyond_grace = rule.due_between(3600.0, 5 * 3600 + 1200.0, jitter=0, grace=600, name="x")
    assert (beyond_grace.fired, beyond_grace.missed, beyond_grace.next_at) == (
        (),
        (3600.0, 5),
        21600.0,
    )


def test_after_a_long_outage_not_every_missed_second_is_visited() -> None:
    rule = CronRule.parse("* * * * * *", "UTC")
    passed = rule.due_between(1000.0, 1_000_000_000.5, jitter=0, grace=3600, name="x")
    assert len(passed.fired) == CATCH_UP_WINDOW
    assert passed.next_at == 1_000_000_001.0
    assert passed.missed is not None
    assert passed.missed[1] >= 5000


def test_jitter_is_the_same_in_all_processes_and_differs_by_schedule_and_time() -> None:
    offsets = {with_jitter(name, due, 600) - due for name in ("a", "b") for due in (0.0, 60.0)}
    assert len(offsets) == 4
    assert all(0 <= each < 600 for each in offsets)
    assert with_jitter("a", 60.0, 600) == with_jitter("a", 60.0, 600)
    rule = CronRule.parse("0 * * * *", "UTC")
    fire_at = with_jitter("a", 3600.0, 600)
    before = rule.due_between(3600.0, fire_at - 1, jitter=600, grace=0, name="a")
    assert (before.fired, before.next_at) == ((), 3600.0)
    after = rule.due_between(3600.0, fire_at, jitter=600, grace=0, name="a")
    assert (after.fired, after.next_at) == ((3600.0,), 7200.0)


@given(
    since=st.integers(0, 10**6),
    outage=st.integers(0, 40_000),
    grace=st.integers(0, 20_000),
    jitter=st.integers(0, 600),
)
@settings(max_examples=100)
def test_each_due_time_is_fired_missed_or_to_come(
    since: int, outage: int, grace: int, jitter: int
) -> None:
    rule = CronRule.parse("*/5 * * * *", "UTC")
    first = rule.after(since)
    now = first + outage
    passed = rule.due_between(first, now, jitter=jitter, grace=grace, name="x")
    missed = passed.missed[1] if passed.missed else 0
    assert first + 300 * (len(passed.fired) + missed) == passed.next_at
    assert with_jitter("x", passed.next_at, jitter) > now
    assert all(
        now - with_jitter("x", due, jitter) <= max(grace, CATCH_UP_WINDOW) for due in passed.fired
    )


# --- the file -----------------------------------------------------------------------------------

JOB_MODULES = ("tests.support.jobs",)


def test_a_file_has_an_entry_under_each_name(tmp_path: Path) -> None:
    file = tmp_path / "schedules.toml"
    file.write_text(
        '[tidy-up]\ncron = "0 3 * * *"\ntimezone = "Europe/Berlin"\njob = "maintenance.tidied"\n'
        "payload = { n = 7 }\njitter = 60\n"
    )
    (entry,) = read_file(file, Registry.load(JOB_MODULES))
    assert entry == ScheduleEntry(
        name="tidy-up",
        cron="0 3 * * *",
        timezone="Europe/Berlin",
        job="maintenance.tidied",
        payload={"n": 7},
        jitter=60,
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[a\n", r"line 1"),
        ("a = 1\n", r"\[a\]: expected a TOML table"),
        ('[a]\njob = "hot.noop"\n', r"\[a\]: cron: Field required"),
        ('[a]\ncron = "x"\njob = "hot.noop"\n', r"\[a\]: cron 'x': Wrong number of fields"),
        ('[a]\ncron = "0 3 * * *"\njob = "hot.nothing"\n', r"no job type 'nothing'"),
        ('[a]\ncron = "0 3 * * *"\njob = "hot.noop"\npayload = {n="x"}\n', r"\[a\]: payload"),
        ('[a]\ncron = "0 3 * * *"\njob = "hot.noop"\nname = "b"\n', r"leave `name` out"),
        ('[A]\ncron = "0 3 * * *"\njob = "hot.noop"\n', r"\[A\]: name"),
    ],
)
def test_an_invalid_file_is_refused_with_the_place_and_reason(
    tmp_path: Path, text: str, reason: str
) -> None:
    file = tmp_path / "schedules.toml"
    file.write_text(text)
    with pytest.raises(InvalidScheduleFile, match=reason) as caught:
        read_file(file, Registry.load(JOB_MODULES))
    assert str(file) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidScheduleFile, match="there is no file"):
        read_file(tmp_path / "none.toml", Registry.load(JOB_MODULES))


def test_a_nightly_rule_is_due_once_each_day_in_zones_with_summer_time() -> None:
    days: list[date]
    for zone in ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago"):
        rule = CronRule.parse("30 2 * * *", zone)
        due = timestamp("2026-01-01", ZoneInfo(zone))
        days = []
        while len(days) < 365:
            due = rule.after(due)
            days.append(datetime.fromtimestamp(due, ZoneInfo(zone)).date())
        assert days == [days[0] + timedelta(days=number) for number in range(365)]


def test_the_default_schedules_are_valid() -> None:
    registry = Registry.load(job_modules())
    result = default_entries(registry)
    assert result == list(DEFAULT_SCHEDULES)  # each of their job types exists
    for each in result:
        each.check(registry, remote=True)
    assert default_entries(Registry.load(JOB_MODULES)) == []
