"""What commands say when the broker's port is open, and no broker is behind it."""

import pytest

from tests.acceptance.conftest import CommandLine
from tests.support.peers import Peer, closes, closes_once_open, listening, sends_garbage

COMMANDS = {
    "publish": ("publish", "hot.work", "--payload", "{}"),
    "lanes": ("lanes",),
}


@pytest.mark.parametrize("peer", [closes, closes_once_open, sends_garbage])
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_it_is_told_in_one_line(jobctl: CommandLine, command: tuple[str, ...], peer: Peer) -> None:
    with listening(peer) as url:
        done = jobctl.run(*command, JOBS_AMQP_URL=url, JOBS_MANAGEMENT_URL="http://127.0.0.1:1")
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("jobctl: can't ")


def test_doctor_names_the_broker(jobctl: CommandLine) -> None:
    with listening(closes) as url:
        done = jobctl.run("doctor", JOBS_AMQP_URL=url)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "can't connect to the broker" in done.stdout + done.stderr
