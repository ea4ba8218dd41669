"""`jobctl publish`: its output, options and errors."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import aio_pika

from switchyard.services.common.extras import MODULES_OF_EXTRAS
from tests.acceptance.conftest import JOBCTL, ROOT, CommandLine
from tests.support.brokers import TestBroker
from tests.support.tcp_proxy import TcpProxy

PRINT_MODULES = """
import sys
from switchyard.cli.main import run
assert run(sys.argv[1:]) == 0
print(*sys.modules)
"""


def test_publish_prints_only_the_job_id_and_the_job_is_queued(jobctl: CommandLine) -> None:
    job_id = jobctl.publish(n=1)
    assert jobctl.json("jobs", "show", job_id)["state"] == "queued"


def test_publishing_loads_no_library_of_an_extra(jobctl: CommandLine) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", PRINT_MODULES, "publish", "hot.work", "--payload", "{}"],
        env=jobctl.environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    job_id, modules = completed.stdout.splitlines()
    assert jobctl.json("jobs", "show", job_id)["state"] == "queued"
    assert set(modules.split()) & frozenset().union(*MODULES_OF_EXTRAS.values()) == set()


def test_the_payload_can_be_read_from_a_file(jobctl: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    file.write_text('{"n": 7}')
    job_id = jobctl.ok("publish", "hot.work", "--payload", f"@{file}").strip()
    assert jobctl.json("jobs", "show", job_id)["payload"] == {"n": 7}


def test_options_are_in_the_record_of_the_job(jobctl: CommandLine) -> None:
    options = ["--priority", "3", "--max-attempts", "5", "--delay", "5m", "--expires-in", "1h"]
    published = jobctl.json("publish", "hot.work", "--payload", "{}", *options)
    assert published["state"] == "scheduled"
    job = jobctl.json("jobs", "show", published["job_id"])
    assert (job["priority"], job["max_attempts"]) == (3, 5)
    assert job["run_at"] > job["created_at"]
    assert job["expires_at"] > job["run_at"]


def test_publishing_with_the_same_key_gives_the_same_job(jobctl: CommandLine) -> None:
    command = ("publish", "hot.work", "--payload", '{"n": 1}', "--key", "k")
    first, second = jobctl.json(*command), jobctl.json(*command)
    assert first["job_id"] == second["job_id"]
    assert (first["duplicate"], second["duplicate"]) == (False, True)
    other_command = ("publish", "hot.work", "--payload", '{"n": 2}', "--key", "k")
    assert "choose another key" in jobctl.fails(*other_command)


def test_a_wrong_command_line_ends_with_exit_code_2(jobctl: CommandLine) -> None:
    def fail_to_publish(*arguments: str) -> str:
        return jobctl.fails("publish", "hot.work", *arguments, code=2)

    assert "is not JSON" in fail_to_publish("--payload", "{")
    assert "must be a JSON object" in fail_to_publish("--payload", "[1]")
    assert "can't read" in fail_to_publish("--payload", "@/nowhere.json")
    assert "is empty" in fail_to_publish("--payload", "-")
    assert "is not a duration" in fail_to_publish("--payload", "{}", "--delay", "soon")
    assert "--timeout is for --wait" in fail_to_publish("--payload", "{}", "--timeout", "1s")
    assert "'--payload'" in fail_to_publish()


def test_a_job_that_its_type_refuses_ends_with_exit_code_1(jobctl: CommandLine) -> None:
    def fail_to_publish(key: str, payload: str) -> str:
        return jobctl.fails("publish", key, "--payload", payload)

    assert "n: Input should be a valid integer" in fail_to_publish("hot.work", '{"n": "x"}')
    assert "no job type 'nothing'" in fail_to_publish("hot.nothing", "{}")
    assert "use hot.work or backfill.work" in fail_to_publish("maintenance.work", "{}")
    assert "<lane>.<job_type>" in fail_to_publish("work", "{}")
    assert jobctl.json("jobs", "list") == []


def test_without_a_broker_the_error_names_the_setting(jobctl: CommandLine) -> None:
    error_line = jobctl.fails(
        "publish", "hot.work", "--payload", "{}", JOBS_AMQP_URL="amqp://localhost:1/"
    )
    assert "can't connect to the broker at localhost:1" in error_line
    del jobctl.environment["JOBS_AMQP_URL"]
    assert "set JOBS_AMQP_URL" in jobctl.fails("publish", "hot.work", "--payload", "{}")


def test_without_queues_the_error_names_the_command_that_makes_them(bare: CommandLine) -> None:
    bare.ok("db", "upgrade")
    publish = ("publish", "hot.work", "--payload", '{"n": 1}', "--key", "k")
    error_line = bare.fails(*publish)
    assert (
        "run `jobctl topology apply`; nothing was kept of the job: publish it again" in error_line
    )
    error_of_lines = bare.fails("publish", "hot.work", "--payload", "-", stdin="{}\n{}")
    assert "2 lines were not published" in error_of_lines
    assert "jobctl topology apply" in error_of_lines
    assert bare.json("jobs", "list") == []
    bare.ok("topology", "apply")
    assert bare.json(*publish)["state"] == "queued"
    assert bare.json("dead", "list") == []


async def test_a_job_that_is_not_confirmed_is_reported_as_pending(jobctl: CommandLine) -> None:
    url = urlsplit(jobctl.environment["JOBS_AMQP_URL"])
    async with TcpProxy(url.hostname or "", url.port or 0) as proxy:
        proxy.cut_when(lambda seen: b"unsure" in seen, forward=False)
        arguments = ("publish", "hot.work", "--payload", '{"text": "unsure"}')
        proxy_url = proxy.url(url.geturl())
        completed = await asyncio.to_thread(jobctl.run, *arguments, JOBS_AMQP_URL=proxy_url)
    job_id = completed.stdout.strip()
    assert completed.returncode == 0, completed.stderr
    assert f"{job_id} is recorded (pending)" in " ".join(completed.stderr.split())
    assert jobctl.state(job_id) == "pending"


async def test_a_job_type_without_a_binding_is_refused_before_anything_is_recorded(
    jobctl: CommandLine, broker310: TestBroker
) -> None:
    """A new type of an existing queue has none before `jobctl topology apply`."""
    jobctl.ok("publish", "hot.work", "--payload", "{}")
    async with await aio_pika.connect(broker310.amqp_url) as connection:
        channel = await connection.channel()
        queue = await channel.get_queue("hot.tester", ensure=False)
        await queue.unbind("jobs.topic", "hot.work")
    for stdin in (None, "{}\n{}"):
        payload = "{}" if stdin is None else "-"
        error_line = jobctl.fails("publish", "hot.work", "--payload", payload, stdin=stdin)
        assert "no queue is bound to 'jobs.topic' for 'hot.work'" in error_line
    checks = {
        check["finding"]: check for check in json.loads(jobctl.run("doctor", "--json").stdout)
    }
    missing = checks["topology-missing"]
    assert "jobs.topic → hot.tester (hot.work)" in missing["detail"]
    (command,) = re.findall("`jobctl ([^`]+)`", missing["remedy"])
    jobctl.ok(*command.split())
    jobctl.ok("publish", "hot.work", "--payload", "{}")
    assert "topology-missing" not in jobctl.run("doctor", "--json").stdout
    assert (len(jobctl.json("jobs", "list")), jobctl.json("dead", "list")) == (2, [])


async def test_a_job_published_without_a_binding_still_runs(
    jobctl: CommandLine, broker310: TestBroker
) -> None:
    """The publisher can't ask the management API; the scheduler queues the job later."""
    async with await aio_pika.connect(broker310.amqp_url) as connection:
        channel = await connection.channel()
        queue = await channel.get_queue("hot.tester", ensure=False)
        await queue.unbind("jobs.topic", "hot.work")
    with jobctl.started("scheduler"), jobctl.started("worker", "tester"):
        command = ("publish", "hot.work", "--payload", "{}", "--wait")
        jobctl.environment["JOBS_MANAGEMENT_URL"] = "http://127.0.0.1:9"  # the API can't be reached
        await asyncio.to_thread(jobctl.ok, *command)


def test_the_error_of_a_full_lane_says_what_became_of_the_job(jobctl: CommandLine) -> None:
    lines = "{}\n" * 1_001
    completed = jobctl.run("publish", "hot.work", "--payload", "-", stdin=lines)
    assert completed.returncode == 1
    # By the broker's refusal or by the measured depth, whichever comes first.
    assert (
        "is full; it waits in jobs.dead" in completed.stderr
        or "is full; nothing" in completed.stderr
    )
    assert len(completed.stdout.splitlines()) <= 1_000


def test_publishing_one_job_goes_by_the_measured_depth_of_its_queue(jobctl: CommandLine) -> None:
    jobctl.ok("publish", "hot.work", "--payload", "-", stdin="{}\n" * 600)
    completed = jobctl.run("publish", "hot.work", "--payload", "{}", "--json")
    assert "the queue of hot.work is slow: publish less" in completed.stderr
    assert json.loads(completed.stdout)["pressure"] == "slow"
    jobctl.ok("publish", "hot.work", "--payload", "-", stdin="{}\n" * 399)
    command = ("publish", "hot.work", "--payload", "{}")
    assert "is full; nothing was kept: publish it later" in jobctl.fails(*command)
    assert jobctl.json("dead", "list") == []


def test_wait_prints_the_result_or_the_cause_of_death(jobctl: CommandLine) -> None:
    with jobctl.worker():
        result = jobctl.ok("publish", "hot.work", "--payload", '{"n": 5}', "--wait")
        assert json.loads(result) == {"n": 5}
        error_line = jobctl.fails("publish", "hot.work", "--payload", '{"fail": true}', "--wait")
        assert "is dead (permanent): it was told to" in error_line


def test_wait_for_the_pipeline_returns_when_all_following_jobs_have_ended(
    jobctl: CommandLine,
) -> None:
    payload, failing_payload = "{}", '{"fail": true}'
    with jobctl.worker():
        command = ("publish", "hot.staged", "--wait=pipeline", "--payload")
        rows = [row.split() for row in jobctl.ok(*command, payload).splitlines()]
        assert [row[1:] for row in rows] == [["staged", "succeeded"], ["work", "succeeded"]]
        pipeline = jobctl.json(*command, payload)
        assert (pipeline["state"], len(pipeline["pipeline_jobs"])) == ("succeeded", 1)
        assert "is dead (permanent): it was told to" in jobctl.fails(*command, failing_payload)
        lines = jobctl.run(*command, "-", stdin=f"{payload}\n{failing_payload}\n")
        assert [row.split()[1] for row in lines.stdout.splitlines()] == ["succeeded", "dead"]
        assert "1 of 2 succeeded" in lines.stderr
        assert jobctl.ok("publish", "hot.staged", "--wait", "--payload", payload).strip() == "{}"


def test_wait_gives_up_after_the_timeout(jobctl: CommandLine) -> None:
    error_line = jobctl.fails(
        "publish", "hot.work", "--payload", "{}", "--wait", "--timeout", "100ms"
    )
    assert "not ended within 0.1 s" in error_line
    assert "jobctl jobs watch" in error_line


def test_a_thousand_lines_are_a_thousand_jobs(jobctl: CommandLine) -> None:
    lines = "".join(f'{{"n": {n}}}\n' for n in range(1_000))
    ids = jobctl.ok("publish", "backfill.work", "--payload", "-", "--key", "run", stdin=lines)
    assert len(set(ids.split())) == 1_000
    lanes = {lane["lane"]: lane for lane in jobctl.json("lanes")}
    assert lanes["backfill"]["jobs"] == {"queued": 1_000}
    repeated = jobctl.run("publish", "backfill.work", "--payload", "-", "--key", "run", stdin=lines)
    assert repeated.returncode == 0
    assert "0 published; 1000 were known already" in " ".join(repeated.stderr.split())


def test_bad_lines_are_named_and_the_good_ones_published(jobctl: CommandLine) -> None:
    lines = '{"n": 1}\n{bad\n\n{"n": "x"}\n[1]\n{"n": 2}'
    completed = jobctl.run("publish", "hot.work", "--payload", "-", "--json", stdin=lines)
    rows = {row["line"]: row for row in map(json.loads, completed.stdout.splitlines())}
    assert completed.returncode == 1
    assert {number for number, row in rows.items() if "error" in row} == {2, 4, 5}
    assert {number for number, row in rows.items() if "job_id" in row} == {1, 6}
    assert "3 lines were not published" in completed.stderr


def test_one_json_object_over_several_lines_is_one_job(jobctl: CommandLine) -> None:
    job_id = jobctl.ok("publish", "hot.work", "--payload", "-", stdin='{\n  "n": 3\n}\n').strip()
    assert jobctl.json("jobs", "show", job_id)["payload"] == {"n": 3}


def test_waits_for_all_lines(jobctl: CommandLine) -> None:
    with jobctl.worker():
        rows = jobctl.ok(
            "publish", "hot.work", "--payload", "-", "--wait", stdin='{"n": 1}\n{"n": 2}\n'
        )
        assert [row.split()[1] for row in rows.splitlines()] == ["succeeded", "succeeded"]


def test_a_closed_pipe_is_not_reported_as_an_error(jobctl: CommandLine) -> None:
    jobctl.ok("publish", "backfill.work", "--payload", "-", stdin="{}\n" * 300)
    piped = subprocess.run(
        f"{JOBCTL} jobs list --limit 300 --json | head -1",
        shell=True,
        env=jobctl.environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert piped.stdout == "[\n"
    assert piped.stderr == ""
