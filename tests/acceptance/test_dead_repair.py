"""`jobctl dead`: groups, records of redrives, edits, undo, export and import, replay."""

import json
import os
import re
import signal
import stat
import time
from pathlib import Path

from tests.acceptance.conftest import CommandLine


def write_editor(tmp_path: Path, *lines: str) -> str:
    """Write a value for $EDITOR: a shell script of these lines, with the file as `$1`."""
    script = tmp_path / "editor.sh"
    script.write_text("\n".join(("#!/bin/sh", *lines, "")))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def test_groups_name_causes_and_select_letters(jobctl: CommandLine, dead_ids: list[str]) -> None:
    [group] = jobctl.json("dead", "groups")
    assert (group["count"], group["reason"], group["job_type"]) == (3, "permanent", "work")
    assert (group["error_type"], group["message"]) == ("PermanentError", "it was told to")
    assert group["location"] == "acceptance/job_types.py:work"
    assert (group["trend"][-1], len(group["trend"])) == (3, 24)
    assert group["sample_id"] in dead_ids
    group_id = group["group"]
    assert len(jobctl.json("dead", "list", "--group", group_id)) == 3
    assert jobctl.json("dead", "list", "--group", "0" if group_id[0] != "0" else "1") == []
    assert group_id in jobctl.ok("dead", "groups")
    assert "--group: give the id of a group" in jobctl.fails("dead", "list", "--group", "x", code=2)
    redrive = jobctl.json("dead", "redrive", "--group", group_id[:6], "--yes")
    assert redrive["redriven"] == 3
    assert jobctl.json("dead", "groups") == []


def test_a_redrive_leaves_a_record(jobctl: CommandLine, dead_ids: list[str]) -> None:
    reason_option = ("--why", "the server is back")
    redrive = jobctl.json("dead", "redrive", "--all", "--yes", "--limit", "2", *reason_option)
    [listed] = jobctl.json("dead", "redrives", "list")
    assert (listed["id"], listed["state"]) == (redrive["id"], "completed")
    assert (listed["reason"], listed["redriven"]) == ("the server is back", 2)
    assert "@" in listed["created_by"]
    shown = jobctl.ok("dead", "redrives", "show", redrive["id"])
    assert "the server is back" in shown
    with jobctl.worker():
        deadline = time.monotonic() + 30
        while (shown := jobctl.json("dead", "redrives", "show", redrive["id"]))["failed"] < 2:
            assert time.monotonic() < deadline, shown
    assert "no redrive 'nope'" in jobctl.fails("dead", "redrives", "show", "nope")
    assert "is over" in jobctl.fails("dead", "redrives", "cancel", redrive["id"])


def test_a_failing_canary_halts_the_redrive_and_says_how_to_resume(
    jobctl: CommandLine, dead_ids: list[str]
) -> None:
    with jobctl.worker():
        text = jobctl.fails("dead", "redrive", "--all", "--yes", "--canary", "1")
    assert "is halted: canary: 1 of 1 failed again" in text
    assert "jobctl dead redrives resume" in text
    assert len(jobctl.json("dead", "list")) == 3
    for option, value, code in (
        ("--halt-on", "0", 2),
        ("--rate", "fast", 2),
        ("--merge", "[1]", 2),
        ("--jq", ".a +", 1),
    ):
        jobctl.fails("dead", "redrive", "--all", "--yes", option, value, code=code)


def test_an_interrupt_pauses_the_redrive_and_says_how_to_resume(
    jobctl: CommandLine, dead_ids: list[str]
) -> None:
    slow_redrive = ("dead", "redrive", "--all", "--yes", "--rate", "1/m")
    with jobctl.started(*slow_redrive) as process:
        deadline = time.monotonic() + 30
        while [redrive["state"] for redrive in jobctl.json("dead", "redrives", "list")] != [
            "running"
        ]:
            assert time.monotonic() < deadline, jobctl.log_of("dead")
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(20) == 1
    log = jobctl.log_of("dead")
    [paused] = jobctl.json("dead", "redrives", "list")
    assert paused["state"] == "paused"
    assert f"jobctl dead redrives resume {paused['id']}" in log
    jobctl.ok("dead", "redrives", "set", paused["id"], "--rate", "0")
    jobctl.ok("dead", "redrives", "resume", paused["id"])
    assert jobctl.json("dead", "redrives", "show", paused["id"])["redriven"] == 3
    assert jobctl.json("dead", "list") == []
    finished = jobctl.fails("dead", "redrives", "set", paused["id"], "--rate", "1")
    assert "it is over" in finished


def test_a_dry_run_lists_the_routing_keys(jobctl: CommandLine, dead_ids: list[str]) -> None:
    plan = jobctl.json("dead", "redrive", "--all", "--to", "backfill.work", "--dry-run")
    assert plan["routes"] == {"backfill.work": 3}
    assert "3 to hot.work" in jobctl.ok("dead", "redrive", "--all", "--dry-run")
    assert len(jobctl.json("dead", "list")) == 3
    assert jobctl.json("dead", "redrives", "list") == []


def test_a_dry_run_shows_the_difference_of_each_changed_letter(
    jobctl: CommandLine, dead_ids: list[str]
) -> None:
    change_options = (
        "dead",
        "redrive",
        "--all",
        "--dry-run",
        "--set",
        "payload.n=9",
        "--priority",
        "7",
    )
    lines = jobctl.ok(*change_options).splitlines()
    assert f"{dead_ids[0]}:" in lines
    for number in range(3):
        assert f'  -    "n": {number}' in lines
    assert lines.count('  +    "n": 9') == 3
    assert [line for line in lines if "redrives" in line or "queued_at" in line] == []
    differences = jobctl.json(*change_options)["differences"]
    assert [difference["letter_id"] for difference in differences] == dead_ids
    assert '+  "priority": 7,' in differences[0]["lines"]
    assert jobctl.json("dead", "redrive", "--all", "--dry-run")["differences"] == []


def test_an_unknown_group_is_an_error_and_an_empty_one_is_none(
    jobctl: CommandLine, dead_ids: list[str]
) -> None:
    [group] = jobctl.json("dead", "groups")
    unknown_group = "0" if group["group"][0] != "0" else "1"
    for command in (
        ("redrive", "--yes"),
        ("redrive", "--dry-run"),
        ("redrive", "--yes", "--from-ledger"),
        ("purge", "--yes"),
        ("purge", "--dry-run"),
        ("export",),
    ):
        error_line = jobctl.fails("dead", *command, "--group", unknown_group)
        assert (
            f"no dead letter is of group '{unknown_group}': see `jobctl dead groups`" in error_line
        ), command
    assert jobctl.json("dead", "redrives", "list") == []
    assert jobctl.json("dead", "purges") == []
    # A group whose letters are gone is empty, which is no error.
    for number in (3, 0):
        redrive = jobctl.json("dead", "redrive", "--group", group["group"], "--yes")
        assert redrive["redriven"] == number


def test_a_redrive_changes_many_letters_by_patch_and_expression(
    jobctl: CommandLine, dead_ids: list[str]
) -> None:
    change_options = ("--merge", '{"seconds": null, "fail": false}', "--jq", ".n += 40")
    jobctl.ok("dead", "redrive", "--all", "--yes", "--priority", "7", *change_options)
    with jobctl.worker():
        for job_id in dead_ids:
            jobctl.ok("jobs", "watch", job_id)
    jobs = [jobctl.json("jobs", "show", job_id) for job_id in dead_ids]
    assert [job["result"] for job in jobs] == [{"n": 40}, {"n": 41}, {"n": 42}]
    assert [job["priority"] for job in jobs] == [7] * 3
    assert jobs[0]["payload"] == {"fail": False, "n": 40}


def test_edit_shows_the_difference_and_redrives(
    jobctl: CommandLine, dead_ids: list[str], tmp_path: Path
) -> None:
    job_id = dead_ids[0]
    command = write_editor(tmp_path, """sed -i 's/"fail": true/"fail": false/' "$1" """)
    completed = jobctl.run("dead", "edit", job_id, "--yes", EDITOR=command)
    assert completed.returncode == 0, completed.stderr
    assert '-  "fail": true' in completed.stderr
    assert '+  "fail": false' in completed.stderr
    with jobctl.worker():
        jobctl.ok("jobs", "watch", job_id)
    metadata = jobctl.json("jobs", "show", job_id)["metadata"]
    assert metadata["edited_from"] == f"{job_id}/0"


def test_on_the_host_a_redrive_may_set_a_local_only_field(
    jobctl: CommandLine, dead_ids: list[str], tmp_path: Path
) -> None:
    first, second, _ = dead_ids
    jobctl.ok("dead", "redrive", first, "--merge", '{"spool": "/var/spool/a"}')
    command = write_editor(tmp_path, """echo '{"spool": "/var/spool/b"}' > "$1" """)
    completed = jobctl.run("dead", "edit", second, "--yes", EDITOR=command)
    assert completed.returncode == 0, completed.stderr
    spools = [jobctl.json("jobs", "show", job_id)["payload"]["spool"] for job_id in (first, second)]
    assert spools == ["/var/spool/a", "/var/spool/b"]


def test_an_invalid_edit_is_refused(
    jobctl: CommandLine, dead_ids: list[str], tmp_path: Path
) -> None:
    for line, complaint in (
        ("""echo '{"n": "many"}' > "$1" """, "n: Input should be a valid integer"),
        ("""echo 'nonsense' > "$1" """, "not redriven"),
        ("exit 3", "ended with 3"),
    ):
        command = write_editor(tmp_path, line)
        text = jobctl.fails("dead", "edit", dead_ids[0], "--yes", EDITOR=command)
        assert complaint in text
    unchanged = jobctl.run("dead", "edit", dead_ids[0], "--yes", EDITOR="true")
    assert "nothing was changed" in unchanged.stderr
    assert len(jobctl.json("dead", "list")) == 3


def test_undo_takes_back_an_edit_whose_job_has_not_run(
    jobctl: CommandLine, dead_ids: list[str]
) -> None:
    job_id, second_id, third_id = dead_ids
    jobctl.ok("dead", "redrive", job_id, "--set", "payload.n=99", "--to", "backfill.work")
    assert jobctl.json("jobs", "show", job_id)["payload"]["n"] == 99
    assert "is a dead letter again" in jobctl.ok("dead", "undo", job_id)
    [edit] = jobctl.json("dead", "show", job_id)["edits"]
    payloads = [edit[name]["payload"]["n"] for name in ("original", "edited")]
    assert (payloads, edit["routing_key"]) == ([0, 99], "backfill.work")
    assert edit["undone_at"] is not None
    shown = jobctl.json("jobs", "show", job_id)
    assert (shown["state"], shown["payload"]["n"], shown["lane"]) == ("dead", 0, "hot")
    assert {letter["id"] for letter in jobctl.json("dead", "list")} == set(dead_ids)

    jobctl.ok("dead", "redrive", second_id, "--set", "payload.fail=false")
    with jobctl.worker():
        jobctl.ok("jobs", "watch", second_id)
        assert "too late" in jobctl.run("dead", "undo", second_id).stdout
        # The edited copy that was taken back has not run.
        assert jobctl.json("jobs", "show", job_id)["state"] == "dead"
        jobctl.ok("dead", "redrive", job_id, "--set", "payload.fail=false")
        jobctl.ok("jobs", "watch", job_id)
    assert jobctl.json("jobs", "show", job_id)["result"] == {"n": 0}
    assert "was not edited" in jobctl.fails("dead", "undo", third_id)


def test_exported_letters_can_be_imported_after_a_purge(
    jobctl: CommandLine, dead_ids: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "letters.jsonl"
    before = jobctl.json("dead", "show", dead_ids[1])
    jobctl.ok("dead", "export", "--all", "--out", str(file))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["id"] for line in lines] == dead_ids
    assert jobctl.json("dead", "import", str(file)) == {"imported": 0, "skipped": 3, "refused": []}
    jobctl.ok("dead", "purge", "--all", "--yes")
    assert jobctl.json("dead", "list") == []

    assert jobctl.json("dead", "import", str(file)) == {"imported": 3, "skipped": 0, "refused": []}
    after = jobctl.json("dead", "show", dead_ids[1])
    for name in ("body", "reason", "error_type", "traceback", "dead_at", "group"):
        assert after[name] == before[name]
    jobctl.ok("dead", "redrive", dead_ids[1], "--set", "payload.fail=false")
    with jobctl.worker():
        jobctl.ok("jobs", "watch", dead_ids[1])

    file.write_text(json.dumps(lines[0]) + "\n{}\n")
    assert "line 2:" in jobctl.fails("dead", "import", str(file))


def test_a_replay_runs_the_job_locally_and_changes_nothing(
    jobctl: CommandLine, dead_ids: list[str]
) -> None:
    job_id = dead_ids[0]
    before = jobctl.json("jobs", "show", job_id)
    completed = jobctl.run("dead", "replay", job_id, "--local")
    assert completed.returncode == 1
    assert "would be dead again: permanent" in completed.stdout
    assert "PermanentError: it was told to" in completed.stdout
    replay = jobctl.json("dead", "replay", job_id, "--local", "--set", "payload.fail=false")
    assert (replay["outcome"], replay["result"]) == ("succeeded", {"n": 0})
    assert "jobctl dead redrive" in jobctl.fails("dead", "replay", job_id, code=2)
    assert jobctl.json("jobs", "show", job_id) == before
    assert {letter["id"] for letter in jobctl.json("dead", "list")} == set(dead_ids)


def test_the_replay_of_a_crashing_job_names_the_signal_and_the_line(jobctl: CommandLine) -> None:
    with jobctl.worker():
        ids = [jobctl.publish(key, fail=True) for key in ("hot.work", "hot.isolated")]
        for job_id in ids:
            jobctl.until_state(job_id, "dead")
    change_options = ("--set", "payload.fail=false", "--set", "payload.fault=true")
    in_command, in_own_process = (
        jobctl.run("dead", "replay", job_id, "--local", *change_options) for job_id in ids
    )
    assert in_command.returncode == -signal.SIGSEGV  # it runs in the command's own process
    assert in_own_process.returncode == 1
    assert "would be tried again" in in_own_process.stdout
    assert "the handler's process was killed by SIGSEGV" in in_own_process.stdout
    for completed in (in_command, in_own_process):
        assert "Fatal Python error: Segmentation fault" in completed.stderr
        assert re.search(r"job_types.py\", line \d+ in work", completed.stderr)
