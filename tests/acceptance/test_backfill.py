"""`jobctl backfill`, with a scheduler that runs the backfills."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from switchyard.cli.engine.backfill import sources, starting
from switchyard.cli.engine.backfill.options import DeadChoice, common_options
from switchyard.cli.engine.backfill.sources import FormatName
from switchyard.services.common.settings import Settings
from switchyard.services.engine.backfill.formats import FileFormat
from switchyard.services.engine.ledger.bulk_operations import BulkRepository
from switchyard.services.engine.records.errors import LedgerUnavailable
from switchyard.services.engine.records.joins import WHEN_DEAD
from tests.acceptance.conftest import CommandLine


def start_backfill(jobctl: CommandLine, *arguments: str, stdin: str | None = None) -> str:
    """Start a backfill; return its id."""
    return str(json.loads(jobctl.ok("backfill", "start", *arguments, "--json", stdin=stdin))["id"])


def test_a_backfill_from_standard_input_to_its_report(jobctl: CommandLine) -> None:
    lines = [json.dumps({"n": n, "fail": n == 5}) for n in range(12)] + ["nonsense"]
    source = ("file", "-", "--type", "work", "--why", "a trial")
    with jobctl.worker(), jobctl.started("scheduler"):
        backfill_id = start_backfill(jobctl, *source, stdin="\n".join(lines))
        watched = jobctl.run("backfill", "watch", backfill_id)
    assert watched.returncode == 1  # one is dead, one was skipped
    assert "11 succeeded, 1 dead" in watched.stdout
    assert "line 13: not JSON" in watched.stdout
    assert "PermanentError: it was told to" in watched.stdout
    command = f"jobctl dead redrive --operation {backfill_id}"
    assert command in watched.stdout
    shown = jobctl.json("backfill", "show", backfill_id)
    assert (shown["total"], shown["published"], shown["skipped"]) == (13, 12, 1)
    assert shown["jobs"] == {"succeeded": 11, "dead": 1}
    assert (shown["reason"], len(shown["dead"])) == ("a trial", 1)
    assert [record["id"] for record in jobctl.json("backfill", "list")] == [backfill_id]


def test_a_backfill_without_errors_ends_with_exit_code_0(jobctl: CommandLine) -> None:
    with jobctl.worker(), jobctl.started("scheduler"):
        completed = jobctl.run(
            *("backfill", "start", "file", "-", "--format", "lines", "--type", "work"),
            *("--payload", '{"n": 7}', "--watch"),
            stdin="a\nb\n",
        )
    assert completed.returncode == 0, completed.stderr
    assert "2 succeeded" in completed.stdout


def test_a_backfill_is_paused_changed_resumed_and_cancelled(jobctl: CommandLine) -> None:
    backfill_id = start_backfill(
        jobctl, "file", "-", "--type", "work", "--rate", "5", stdin='{"n": 1}\n' * 999
    )
    assert jobctl.json("backfill", "pause", backfill_id)["state"] == "paused"
    changed = jobctl.json(
        "backfill", "set", backfill_id, "--rate", "0", "--max-open", "9", "--weight", "3"
    )
    assert (changed["id"], changed["state"]) == (backfill_id, "paused")
    assert (changed["rate"], changed["max_open"], changed["budget"]) == (None, 9, None)
    assert changed["plan"]["weight"] == 3
    assert jobctl.json("backfill", "resume", backfill_id)["state"] == "waiting"
    with jobctl.started("scheduler"):
        while jobctl.json("backfill", "show", backfill_id)["published"] < 9:
            pass
        cancelled = jobctl.json("backfill", "cancel", backfill_id, "--jobs")
    assert cancelled == {"id": backfill_id, "state": "cancelled", "cancelled_jobs": 9}
    assert "can't be resumed" in jobctl.fails("backfill", "resume", backfill_id)
    assert "it is over" in jobctl.fails("backfill", "set", backfill_id, "--rate", "1")


def test_cancel_lists_jobs_that_had_ended_before(jobctl: CommandLine) -> None:
    lines = '{"n": 1}\n' * 5
    backfill_id = start_backfill(jobctl, "file", "-", "--type", "work", "--rate", "1", stdin=lines)
    with jobctl.worker(), jobctl.started("scheduler"):
        while jobctl.json("backfill", "show", backfill_id)["jobs"].get("succeeded", 0) < 1:
            pass
        output = jobctl.ok("backfill", "cancel", backfill_id, "--jobs")
    assert re.search(r"succeeded +work +20", output)


def test_a_dry_run_shows_the_jobs_and_leaves_nothing(jobctl: CommandLine) -> None:
    shown = json.loads(
        jobctl.ok(
            *("backfill", "start", "file", "-", "--format", "csv", "--type", "work"),
            *("--payload", '{"n": "{count}"}', "--dry-run", "--json"),
            stdin="name,count\nx,3\ny,many\n",
        )
    )
    assert (shown["total"], len(shown["unusable"])) == (2, 1)
    (job,) = shown["jobs"]
    assert (job["routing_key"], job["payload"]) == ("backfill.work", {"n": "3"})
    assert jobctl.json("backfill", "list") == []


def test_on_the_host_a_backfill_may_set_a_local_only_field(jobctl: CommandLine) -> None:
    with jobctl.worker(), jobctl.started("scheduler"):
        completed = jobctl.run(
            *("backfill", "start", "file", "-", "--format", "lines", "--type", "work"),
            *("--payload", '{"spool": "{item}"}', "--watch"),
            stdin="/var/spool/a\n",
        )
    assert completed.returncode == 0, completed.stderr
    assert "1 succeeded" in completed.stdout


def test_an_invalid_backfill_is_refused_in_one_line(jobctl: CommandLine) -> None:
    start = ("backfill", "start")
    for arguments, code, text in (
        (("file", "no-such", "--type", "work"), 2, "can't read 'no-such': there is no such file"),
        (("file", "-", "--type", "work"), 1, "no items"),
        (("file", "-"), 1, "needs a job type: name one with --type"),
        (("file", "-", "--type", "work", "--rate", "inf"), 2, "at most 1,000,000/s"),
        (("documents", "--filter", "state"), 2, "--filter 'state': write NAME=VALUE"),
        (
            ("documents", "--filter", "colour=red", "--type", "work"),
            1,
            "colour: there is no such field",
        ),
        (("arxiv",), 2, "name --query or --from"),
        (("source", "nowhere"), 1, "no source 'nowhere'"),
    ):
        assert text in jobctl.fails(*start, *arguments, code=code), arguments
    assert "no backfill 'nope'" in jobctl.fails("backfill", "show", "nope")
    nothing_named = jobctl.fails("backfill", "set", "nope", code=2)
    assert "name --rate, --max-open, --budget or --weight" in nothing_named
    assert re.search("no backfill", jobctl.fails("backfill", "cancel", "nope"))


def test_a_backfill_can_read_its_items_from_a_pipe(jobctl: CommandLine) -> None:
    arguments = ("/dev/stdin", "--format", "jsonl", "--type", "work", "--dry-run", "--json")
    shown = json.loads(jobctl.ok("backfill", "start", "file", *arguments, stdin='{"n": 1}\n'))
    assert shown["total"] == 1


async def test_the_file_of_a_backfill_that_may_be_recorded_is_kept(
    jobctl: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    create = BulkRepository.create_bulk

    async def create_and_lose_answer(self: BulkRepository, *arguments: Any, **options: Any) -> None:
        await create(self, *arguments, **options)
        raise LedgerUnavailable("the answer was lost")

    monkeypatch.setattr(BulkRepository, "create_bulk", create_and_lose_answer)
    file = tmp_path / "items.jsonl"
    file.write_text('{"n": 1}\n')
    common = common_options(job_type="work")
    settings = Settings()
    with pytest.raises(LedgerUnavailable):
        await starting._start(settings, "file", {"path": str(file)}, common)
    (recorded,) = jobctl.json("backfill", "list")
    assert recorded["state"] == "waiting"
    assert len(list(settings.data_dir.rglob("*.jsonl"))) == 1


def test_values_of_options_are_text_unless_they_have_structure() -> None:
    option_values = ["a=123", "b=true", "c=x", 'd="7"', "e=[1]", "f=null", "g=NaN"]
    assert sources._pairs(option_values, "--option") == {
        "a": "123",
        "b": "true",
        "c": "x",
        "d": "7",
        "e": [1],
        "f": None,
        "g": "NaN",
    }


def test_formats_of_the_command_line_are_those_of_the_source() -> None:
    assert [name.value for name in FormatName] == [file_format.value for file_format in FileFormat]


def test_a_then_job_runs_after_the_end_of_the_backfill(jobctl: CommandLine) -> None:
    then_options = ("--then", "hot.work", "--then-payload", '{"n": 7}', "--when-dead", "go_on")
    lines = "\n".join(json.dumps({"n": n, "fail": n == 2}) for n in range(3))
    with jobctl.worker(), jobctl.started("scheduler"):
        backfill_id = start_backfill(
            jobctl, "file", "-", "--type", "work", *then_options, stdin=lines
        )
        jobctl.run("backfill", "watch", backfill_id)
        then_id = jobctl.json("backfill", "show", backfill_id)["then_id"]
        jobctl.ok("jobs", "watch", then_id)
    assert f"job {then_id}" in jobctl.ok("backfill", "show", backfill_id)
    shown = jobctl.json("jobs", "show", then_id)
    assert (shown["result"], shown["join"]["total"], shown["join"]["dead"]) == ({"n": 7}, 3, 1)


def test_choices_of_when_dead_are_those_of_joins() -> None:
    assert tuple(choice.value for choice in DeadChoice) == WHEN_DEAD
