"""Alert rules and dashboards: they use existing metrics, and alerts fire and have a runbook
section."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from switchyard.services.engine.monitoring.metric_names import ALL
from tests.support.missing import skip_or_fail

ROOT = Path(__file__).parents[2]
FILES = ROOT / "charts" / "switchyard" / "files"
RULES = FILES / "rules.yaml"
RUNBOOK = ROOT / "docs" / "runbook.md"
LABELS_OF_SCRAPES = {"job", "instance", "le"}


def read_rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


ALERTS = [each["alert"] for each in read_rules()]
FIRING_SERIES: dict[str, tuple[str, ...]] = {
    # Series by which the alert fires after half an hour, and without which it does not.
    "SwitchyardDown": ('up{job="switchyard-api"} 0x60',),
    "SwitchyardPartAway": ('switchyard_part_up{part="broker"} 0x60',),
    "SwitchyardBrokerBlocked": ('switchyard_publishes_total{lane="hot",outcome="blocked"} 0+1x60',),
    "SwitchyardNoActiveScheduler": ("switchyard_scheduler_active 0x60",),
    "SwitchyardScheduleLate": ('switchyard_schedule_late_seconds{schedule="a"} 0+60x60',),
    "SwitchyardScheduleRefused": ("switchyard_schedules_refused 1x60",),
    "SwitchyardHotJobsWait": ('switchyard_lane_oldest_seconds{lane="hot"} 31x60',),
    "SwitchyardHotWaitSlow": (
        'switchyard_job_wait_seconds_bucket{lane="hot",le="1.0"} 0x60',
        'switchyard_job_wait_seconds_bucket{lane="hot",le="30.0"} 0+9x60',
        'switchyard_job_wait_seconds_bucket{lane="hot",le="+Inf"} 0+9x60',
    ),
    "SwitchyardQueueNearlyFull": (
        'switchyard_queue_ready{lane="hot",queue="hot.llm"} 900x60',
        'switchyard_queue_limit{lane="hot",queue="hot.llm"} 1000x60',
    ),
    "SwitchyardPublishesRefused": ('switchyard_publishes_total{lane="hot",outcome="full"} 0+1x60',),
    "SwitchyardQueueWithoutConsumer": (
        'switchyard_queue_ready{lane="hot",queue="hot.llm"} 1x60',
        'switchyard_queue_consumers{lane="hot",queue="hot.llm"} 0x60',
    ),
    "SwitchyardWorkerNotConsuming": (
        'switchyard_queue_consuming{instance="a",worker="llm",queue="hot.llm"} 0x60',
    ),
    "SwitchyardWorkerSilent": ('switchyard_workers{worker="llm",status="silent"} 1x60',),
    "SwitchyardDeadLettersGrow": (
        'switchyard_dead_letters{instance="a",lane="hot",reason="exhausted"} 0+1x60',
        'switchyard_dead_letters{instance="b",lane="hot",reason="exhausted"} 0+1x60',
    ),
    "SwitchyardJobsFail": (
        'switchyard_job_attempts_total{job_type="x",outcome="dead"} 0+9x60',
        'switchyard_job_attempts_total{job_type="x",outcome="succeeded"} 0+3x60',
    ),
    "SwitchyardJobsCrash": (
        'switchyard_job_deaths_total{job_type="x",reason="crashed"} 0 0 0 0 0 0 0 0 0 1x50',
    ),
    "SwitchyardOutboxStuck": ("switchyard_outbox_oldest_seconds 130x60",),
    "SwitchyardLedgerSlow": (
        'switchyard_ledger_seconds_bucket{work="write",le="1.0"} 0+8x60',
        'switchyard_ledger_seconds_bucket{work="write",le="10.0"} 0+10x60',
        'switchyard_ledger_seconds_bucket{work="write",le="+Inf"} 0+10x60',
    ),
    "SwitchyardBulkStalled": ('switchyard_bulk_idle_seconds{kind="backfill"} 700x60',),
    "SwitchyardBulkHalted": ('switchyard_bulk_operations{kind="redrive",state="halted"} 1x60',),
}
QUIET_SERIES = (
    'up{job="switchyard-api"} 1x60',
    'switchyard_part_up{part="broker"} 1x60',
    'switchyard_part_up{part="management"} 0x60',
    "switchyard_scheduler_active 1x60",
    'switchyard_schedule_late_seconds{schedule="a"} 30x60',
    "switchyard_schedules_refused 0x60",
    'switchyard_lane_oldest_seconds{lane="hot"} 1x60',
    'switchyard_lane_oldest_seconds{lane="backfill"} 9000x60',
    'switchyard_queue_ready{lane="hot",queue="hot.llm"} 10x60',
    'switchyard_queue_limit{lane="hot",queue="hot.llm"} 1000x60',
    'switchyard_queue_consumers{lane="hot",queue="hot.llm"} 2x60',
    'switchyard_queue_ready{lane="dead",queue="jobs.dead"} 100x60',
    'switchyard_queue_consumers{lane="dead",queue="jobs.dead"} 0x60',
    'switchyard_queue_consuming{instance="a",worker="llm",queue="hot.llm"} 1x60',
    'switchyard_workers{worker="llm",status="silent"} 0x60',
    'switchyard_dead_letters{instance="a",lane="hot",reason="exhausted"} 500x60',
    'switchyard_job_attempts_total{job_type="x",outcome="dead"} 0+1x60',
    'switchyard_job_attempts_total{job_type="x",outcome="succeeded"} 0+99x60',
    "switchyard_outbox_oldest_seconds 3x60",
    'switchyard_publishes_total{lane="hot",outcome="accepted"} 0+9x60',
    'switchyard_publishes_total{lane="hot",outcome="blocked"} 5x60',
    'switchyard_bulk_idle_seconds{kind="backfill"} 5x60',
    'switchyard_bulk_operations{kind="redrive",state="running"} 1x60',
)
"""A system in which nothing is wrong."""


# --- rules ----------------------------------------------------------------------------------------


def run_promtool(*arguments: str) -> str:
    if shutil.which("promtool") is None:
        skip_or_fail("promtool is missing: `make test-deps`")
    result = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_rules_are_valid_for_promtool() -> None:
    assert f"{len(ALERTS)} rules found" in run_promtool("check", "rules", str(RULES))


def make_case(series: tuple[str, ...], *, alert: str, fires: bool) -> dict[str, Any]:
    """Return promtool's test of whether an alert fires after thirty minutes of these series."""
    samples = [dict(zip(("series", "values"), each.split(" ", 1), strict=True)) for each in series]
    # This compares whether the alert fires, not its labels.
    count = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > 0'
    return {
        "name": f"{alert} {'fires' if fires else 'is quiet'}",
        "interval": "1m",
        "input_series": samples,
        "promql_expr_test": [
            {
                "expr": f"({count}) / ({count})",
                "eval_time": "30m",
                "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
            }
        ],
    }


def test_each_alert_fires_by_its_series_and_not_in_a_quiet_system(tmp_path: Path) -> None:
    """One run of promtool tests all, and names the failed cases."""
    assert FIRING_SERIES.keys() == set(ALERTS)
    rules_without_labels = [
        {"alert": each["alert"], "expr": each["expr"], "for": each.get("for", "0s"), "labels": {}}
        for each in read_rules()
    ]
    (tmp_path / "rules.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "one", "rules": rules_without_labels}]})
    )
    cases = [make_case(FIRING_SERIES[alert], alert=alert, fires=True) for alert in ALERTS]
    cases += [make_case(QUIET_SERIES, alert=alert, fires=False) for alert in ALERTS]
    options = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": cases}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(options))
    run_promtool("test", "rules", str(tmp_path / "tests.yaml"))


@pytest.mark.parametrize("rule", read_rules(), ids=ALERTS)
def test_the_alert_leads_to_its_section_of_the_runbook(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert page == "docs/runbook.md"
    section = runbook_sections()[anchor]
    assert rule["alert"] in section, "the section names the alert that leads to it"
    assert "jobctl " in section
    assert rule["labels"]["severity"] in ("critical", "warning")


def runbook_sections() -> dict[str, str]:
    parts = re.split(r"^## (.+)$", RUNBOOK.read_text(), flags=re.MULTILINE)
    titles = [re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in parts[1::2]]
    return dict(zip(titles, parts[2::2], strict=True))


# --- rules and dashboards against the metrics ----------------------------------------------------


def queries() -> Iterator[tuple[str, str]]:
    for rule in read_rules():
        yield rule["alert"], rule["expr"]
    for path in sorted((FILES / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{path.stem}: {panel['title']}", target["expr"]


def labels_by_series() -> dict[str, set[str]]:
    """Return the labels of each series, by its name in Prometheus."""
    rules = {"up": set(LABELS_OF_SCRAPES)}
    for each in ALL:
        suffixes = ("_bucket", "_sum", "_count") if each.kind == "histogram" else ("",)
        rules |= {each.name + suffix: {*each.labels, *LABELS_OF_SCRAPES} for suffix in suffixes}
    return rules


@pytest.mark.parametrize(("place", "query"), list(queries()), ids=lambda each: each[:60])
def test_rules_and_panels_use_existing_metrics_and_labels(place: str, query: str) -> None:
    labels_of = labels_by_series()
    used = set(re.findall(r"\b(?:(?:switchyard|llm)_\w+|up\b)", query))
    assert used, place
    assert used <= set(labels_of)
    labels = {label for name in used for label in labels_of[name]}
    used_labels = {
        label.strip()
        for group in re.findall(r"\bby \(([^)]*)\)", query)
        for label in group.split(",")
    }
    used_labels |= set(re.findall(r"(\w+)(?:=~|!=|=|!~)\"", query))
    assert used_labels <= labels, place


def test_every_metric_of_the_system_is_on_a_dashboard() -> None:
    used = {
        name
        for place, query in queries()
        if place not in ALERTS
        for name in re.findall(r"\b(?:switchyard|llm)_\w+", query)
    }
    missing = {each.name for each in ALL if not any(name.startswith(each.name) for name in used)}
    assert missing == set()


def test_dashboards_and_panels_have_unique_ids_and_a_variable_data_source() -> None:
    dashboards = [json.loads(path.read_text()) for path in (FILES / "dashboards").glob("*.json")]
    assert len({dashboard["uid"] for dashboard in dashboards}) == len(dashboards) == 4
    for dashboard in dashboards:
        ids = [panel["id"] for panel in dashboard["panels"]]
        assert len(set(ids)) == len(ids)
        for panel in dashboard["panels"]:
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
