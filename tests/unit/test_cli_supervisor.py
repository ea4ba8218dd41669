"""Child processes: restarted with backoff, stopped for good."""

import os
import signal
import time
from pathlib import Path

import pytest

from switchyard.cli.system.supervisor import FIRST_BACKOFF, Child, Supervisor


@pytest.fixture
def supervisor(tmp_path: Path):
    made = Supervisor(tmp_path / "logs", os.environ)
    yield made
    made.stop(0)


def until_dead(supervisor: Supervisor) -> Child:
    deadline = time.monotonic() + 20
    while not supervisor.dead():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return supervisor.dead()[0]


def test_a_child_that_ends_is_started_again_after_its_backoff(supervisor: Supervisor) -> None:
    supervisor.start("short", "no-such-command")
    child = until_dead(supervisor)
    assert "No such command" in child.tail
    (news,) = supervisor.heal()
    assert f"short ended (exit code 2); starting it again in {FIRST_BACKOFF:g} s" in news
    assert supervisor.heal() == []
    assert child.restart_at is not None
    child.restart_at = time.monotonic()
    assert supervisor.heal() == ["short runs again"]
    until_dead(supervisor)
    assert f"again in {2 * FIRST_BACKOFF:g} s" in supervisor.heal()[0]


def test_stop_kills_what_does_not_listen(supervisor: Supervisor) -> None:
    supervisor.start("deaf", "no-such-command")
    until_dead(supervisor)
    child = supervisor.children[0]
    process = child.process
    assert process is not None
    supervisor.stop(0)
    assert child.process is None
    assert child.reaper is None


def test_sigkill_is_named_in_the_news(supervisor: Supervisor) -> None:
    supervisor.start("killed", "--help")
    process = supervisor.children[0].process
    assert process is not None
    process.send_signal(signal.SIGKILL)
    until_dead(supervisor)
    assert "killed ended (SIGKILL)" in supervisor.heal()[0]


def test_a_child_that_retires_is_not_started_again_and_forgotten(supervisor: Supervisor) -> None:
    supervisor.start("old", "--help")
    supervisor.retire("old")
    process = supervisor.children[0].process
    assert process is not None
    process.wait(20)
    assert supervisor.heal() == ["old has retired"]
    assert supervisor.children == []
