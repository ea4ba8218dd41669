"""`jobctl dead`: list, show, redrive and purge dead letters."""

import json

from tests.acceptance.conftest import CommandLine


def test_list_and_show_follow_the_broker_without_a_scheduler(
    jobctl: CommandLine, dead_ids: list[str]
) -> None:
    listed = jobctl.json("dead", "list")
    assert {letter["id"] for letter in listed} == set(dead_ids)
    assert {letter["reason"] for letter in listed} == {"permanent"}
    assert jobctl.json("dead", "list", "--older-than", "1h") == []
    assert jobctl.json("dead", "list", "--reason", "expired") == []
    assert len(jobctl.json("dead", "list", "--error-type", "PermanentError", "--limit", "2")) == 2
    shown = jobctl.json("dead", "show", dead_ids[0])
    assert json.loads(shown["body"])["payload"] == {"fail": True, "n": 0}
    assert "it was told to" in shown["traceback"]
    text = jobctl.ok("dead", "show", dead_ids[0])
    assert f"jobctl dead redrive {dead_ids[0]} --set 'payload.fail=true'" in text


def test_redrive_with_a_changed_payload_succeeds(jobctl: CommandLine, dead_ids: list[str]) -> None:
    job_id = dead_ids[0]
    change = ("--set", "payload.fail=false", "--set", "payload.n=9")
    plan = jobctl.json("dead", "redrive", job_id, *change, "--dry-run")
    assert (plan["redriven"], plan["missing"]) == (1, 0)
    assert jobctl.state(job_id) == "dead"
    assert jobctl.ok("dead", "redrive", job_id, *change) == "1 redriven\n"
    with jobctl.worker():
        jobctl.ok("jobs", "watch", job_id)
    assert jobctl.json("jobs", "show", job_id)["result"] == {"n": 9}
    assert len(jobctl.json("dead", "list")) == 2
    (redriven,) = jobctl.json("dead", "list", "--state", "redriven")
    assert redriven["id"] == job_id


def test_redrive_by_filter_to_another_lane(jobctl: CommandLine, dead_ids: list[str]) -> None:
    options = ("--to", "backfill.work", "--limit", "2", "--yes")
    assert jobctl.json("dead", "redrive", "--type", "work", *options)["redriven"] == 2
    lanes = {lane["lane"]: lane for lane in jobctl.json("lanes")}
    queues = {queue["queue"]: queue["ready"] for queue in lanes["backfill"]["queues"]}
    assert queues["backfill.tester"] == 2


def test_redrive_that_does_not_validate_leaves_the_letter(
    jobctl: CommandLine, dead_ids: list[str]
) -> None:
    completed = jobctl.run("dead", "redrive", dead_ids[0], "--set", "payload.n=x")
    assert completed.returncode == 1
    assert "n: Input should be a valid integer" in completed.stderr
    assert "1 dead letter is still in its place" in completed.stderr
    assert len(jobctl.json("dead", "list")) == 3
    error_line = jobctl.fails("dead", "redrive", dead_ids[0], "--set", "nonsense")
    assert "write PATH=VALUE" in error_line


def test_redrive_and_purge_need_ids_or_a_filter(jobctl: CommandLine) -> None:
    for command in ("redrive", "purge"):
        assert "name ids, or a filter" in jobctl.fails("dead", command, code=2)
        assert "leave it out" in jobctl.fails("dead", command, "--all", "--lane", "hot", code=2)
        assert "give --yes" in jobctl.fails("dead", command, "--all", code=2)
        assert "--reason 'x'" in jobctl.fails("dead", command, "--reason", "x", code=2)
    assert "give --yes" in jobctl.fails("dead", "purge", "one-id", code=2)


def test_unknown_ids_are_reported(jobctl: CommandLine) -> None:
    assert "1 of these ids not found in jobs.dead" in jobctl.fails("dead", "redrive", "nope")
    assert "there is no dead letter 'nope'" in jobctl.fails("dead", "show", "nope")


def test_purge_removes_letters_and_keeps_a_record(jobctl: CommandLine, dead_ids: list[str]) -> None:
    assert jobctl.ok("dead", "purge", dead_ids[0], "--dry-run") == "1 would be purged\n"
    assert jobctl.json("dead", "purges") == []
    assert jobctl.ok("dead", "purge", dead_ids[0], "--yes", "--why", "rubbish") == "1 purged\n"
    (purged,) = jobctl.json("dead", "list", "--state", "purged")
    assert purged["id"] == dead_ids[0]
    assert len(jobctl.json("dead", "list")) == 2
    (record,) = jobctl.json("dead", "purges")
    assert (record["state"], record["reason"], record["purged"]) == ("completed", "rubbish", 1)
    assert "@" in record["created_by"]
    assert dead_ids[0] in jobctl.ok("dead", "purges")


def test_list_without_a_broker_shows_what_is_indexed(
    jobctl: CommandLine, dead_ids: list[str]
) -> None:
    jobctl.json("dead", "list")
    jobctl.environment["JOBS_AMQP_URL"] = "amqp://localhost:1/"
    completed = jobctl.run("dead", "list")
    assert completed.returncode == 0
    assert "the latest may be missing" in completed.stderr
    assert all(job_id in completed.stdout for job_id in dead_ids)
