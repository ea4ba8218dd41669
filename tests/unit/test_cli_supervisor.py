"""Child processes of `jobctl up` are restarted with a backoff, until they are stopped."""

import errno
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from switchyard.cli.process.up import NodeWatchdog
from switchyard.cli.system.rabbitmq_node import StartError
from switchyard.cli.system.supervisor import MIN_BACKOFF, Child, Supervisor


@pytest.fixture
def supervisor(tmp_path: Path):
    instance = Supervisor(tmp_path / "logs", os.environ)
    yield instance
    instance.stop(0)


def await_death(supervisor: Supervisor) -> Child:
    deadline = time.monotonic() + 20
    while not supervisor.newly_dead():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return supervisor.newly_dead()[0]


def test_a_child_that_ends_is_started_again_after_its_backoff(supervisor: Supervisor) -> None:
    supervisor.start("short", "no-such-command")
    child = await_death(supervisor)
    assert "No such command" in child.tail
    (news,) = supervisor.restart_dead()
    assert f"short ended (exit code 2); starting it again in {MIN_BACKOFF:g} s" in news
    assert supervisor.restart_dead() == []
    assert child.restart_at is not None
    child.restart_at = time.monotonic()
    assert supervisor.restart_dead() == ["short runs again"]
    await_death(supervisor)
    assert f"again in {2 * MIN_BACKOFF:g} s" in supervisor.restart_dead()[0]


@pytest.mark.parametrize("failing_step", ["process", "reaper"])
def test_a_child_that_can_not_be_started_now_is_started_later(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, failing_step: str
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    function = "subprocess.Popen" if failing_step == "process" else "end_with_this_process"
    with monkeypatch.context() as patched:
        patched.setattr(f"switchyard.cli.system.supervisor.{function}", refuse)
        supervisor.start("unlucky", "--help")
        child = supervisor.children[0]
        assert child.process is None or child.process.poll() is not None
        assert supervisor.restart_dead() == [
            "unlucky can't be started: Cannot allocate memory; again in 30 s"
        ]
        assert supervisor.restart_dead() == []
    child.restart_at = time.monotonic()
    assert supervisor.restart_dead() == ["unlucky runs again"]


class FailingNode:
    """A broker that has ended, and whose second restart succeeds."""

    is_running = False
    tries = 0

    def restart(self) -> None:
        self.tries += 1
        if self.tries == 1:
            raise StartError("The node did not become ready in 90 s\nits log")
        self.is_running = True


def test_a_broker_that_does_not_start_at_once_is_tried_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    node: Any = FailingNode()
    watchdog = NodeWatchdog(node)
    now = time.monotonic()
    watchdog.restart_if_ended(now)
    assert "ready in 90 s; again in 30 s" in capsys.readouterr().err
    watchdog.restart_if_ended(now + 20)
    assert node.tries == 1
    watchdog.restart_if_ended(now + 60)
    assert node.is_running
    watchdog.restart_if_ended(now + 61)
    assert node.tries == 2


def test_stop_forgets_the_process_of_a_dead_child(supervisor: Supervisor) -> None:
    supervisor.start("deaf", "no-such-command")
    await_death(supervisor)
    child = supervisor.children[0]
    process = child.process
    assert process is not None
    supervisor.stop(0)
    assert child.process is None
    assert child.reaper is None


def test_the_message_names_the_signal_that_killed_a_child(supervisor: Supervisor) -> None:
    supervisor.start("killed", "--help")
    process = supervisor.children[0].process
    assert process is not None
    process.send_signal(signal.SIGKILL)
    await_death(supervisor)
    assert "killed ended (SIGKILL)" in supervisor.restart_dead()[0]


def test_a_retired_child_is_not_restarted_but_forgotten(supervisor: Supervisor) -> None:
    supervisor.start("old", "--help")
    supervisor.retire("old")
    process = supervisor.children[0].process
    assert process is not None
    process.wait(20)
    assert supervisor.restart_dead() == ["old has retired"]
    assert supervisor.children == []
