"""Errors of commands when the broker's port is open and no broker is behind it."""

import pytest

from tests.acceptance.conftest import CommandLine
from tests.support.peers import Peer, closes, closes_once_open, listening, sends_garbage

COMMANDS = {
    "publish": ("publish", "hot.work", "--payload", "{}"),
    "lanes": ("lanes",),
}


@pytest.mark.parametrize("peer", [closes, closes_once_open, sends_garbage])
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_a_command_says_in_one_line_that_it_can_not_connect(
    jobctl: CommandLine, command: tuple[str, ...], peer: Peer
) -> None:
    with listening(peer) as url:
        completed = jobctl.run(
            *command, JOBS_AMQP_URL=url, JOBS_MANAGEMENT_URL="http://127.0.0.1:1"
        )
    assert completed.returncode == 1, (completed.stdout, completed.stderr)
    assert "Traceback" not in completed.stderr
    assert completed.stderr.strip().splitlines()[-1].startswith("jobctl: can't ")


def test_the_doctor_says_that_it_can_not_connect_to_the_broker(jobctl: CommandLine) -> None:
    with listening(closes) as url:
        completed = jobctl.run("doctor", JOBS_AMQP_URL=url)
    assert completed.returncode == 1
    assert "Traceback" not in completed.stderr
    assert "can't connect to the broker" in completed.stdout + completed.stderr
