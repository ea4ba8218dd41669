"""Messages that can't be read, and what the commands say of them."""

import base64
import json
from pathlib import Path

import pytest

from switchyard.broker.dead.dead_letter_headers import PROPERTIES_HEADER
from tests.acceptance.conftest import CommandLine
from tests.support.raw_amqp import BAD_ID, HOSTILE, RawPublisher

BODY = b'{"job_id": "carried", "job_type": "work", "payload": {}}'


def test_a_worker_survives_unreadable_messages_and_they_are_listed(
    jobctl: CommandLine, tmp_path: Path
) -> None:
    with RawPublisher(jobctl.environment["JOBS_AMQP_URL"]) as raw, jobctl.worker() as worker:
        for properties in HOSTILE.values():
            raw.publish("jobs.topic", "hot.work", BODY, properties)
        raw.publish("jobs.topic", "hot.work", b"{", BAD_ID)
        jobctl.until_state(jobctl.publish(n=1), "succeeded")
        assert worker.poll() is None
    listed = jobctl.json("dead", "list", "--reason", "malformed")
    assert {letter["error_type"] for letter in listed} == {
        "UnreadableProperties",
        "MalformedMessage",
    }
    assert all(letter["id"].startswith("raw-") for letter in listed)


@pytest.mark.long
def test_unreadable_messages_in_the_dead_letter_queues_stop_no_command(
    jobctl: CommandLine, tmp_path: Path
) -> None:
    with RawPublisher(jobctl.environment["JOBS_AMQP_URL"]) as raw:
        for number, properties in enumerate(HOSTILE.values()):
            raw.publish("jobs.dlx", "hot.work", BODY + b" " * number, properties)
            raw.publish("", "jobs.dead.log", b"[" * 50_000 + b" " * number, properties)
    listed = jobctl.json("dead", "list")
    assert {letter["reason"] for letter in listed} == {"malformed"}
    assert len(listed) == 6
    for letter in listed:
        shown = jobctl.json("dead", "show", letter["id"])
        assert base64.b64decode(shown["headers"][PROPERTIES_HEADER]) in HOSTILE.values()
        text = jobctl.ok("dead", "show", letter["id"])
        assert "the AMQP properties can't be read: " in " ".join(text.split())
        assert PROPERTIES_HEADER in text
        assert "jobctl dead redrive" not in text
        assert "properties can't be read" in jobctl.fails("dead", "edit", letter["id"], "--yes")
        jobctl.fails("dead", "replay", letter["id"], "--local")

    jobctl.fails("dead", "redrive", "--all", "--dry-run")  # the letters would stay where they are
    plan = json.loads(jobctl.run("dead", "redrive", "--all", "--dry-run", "--json").stdout)
    assert (plan["matched"], plan["redriven"], plan["invalid"]) == (3, 0, 3)
    missing_note, *refusal_notes = plan["notes"]
    # These three are in jobs.dead.log.
    assert missing_note.startswith("3 letters of these can't be found on the broker")
    assert all("the AMQP properties can't be read" in note for note in refusal_notes)

    file = tmp_path / "letters.jsonl"
    jobctl.ok("dead", "export", "--all", "--out", str(file))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert all(base64.b64decode(line["properties"]) in HOSTILE.values() for line in lines)
    assert len(lines) == 6
    jobctl.ok("dead", "purge", "--reason", "malformed", "--yes")
    assert jobctl.json("dead", "redrive", "--all", "--dry-run")["matched"] == 0
    jobctl.ok("dead", "import", str(file))
    assert len(jobctl.json("dead", "list")) == 6
