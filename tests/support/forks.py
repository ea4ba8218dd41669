"""The workers of pytest-xdist as forks of one process that has collected the tests.

To import all tests and collect them takes 15 s of processor time, and 35 s from a fresh clone,
which each worker would spend for itself. Here one process, the collector, does it once, and a
worker is a fork of it: also one that takes the place of a crashed worker. xdist starts a program
for each worker (fork_client.py) and talks to that over its standard streams; the program hands
these to the collector, whose fork answers in its place.

What must not be shared is made anew in a fork: `pytest_forked`. A library that starts threads of
its own when it is imported, as those written in Go, can't be imported by a module of tests, but by
what runs in it: a fork has none of these threads.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _pytest.config import _prepareconfig
from _pytest.tmpdir import TempPathFactory

from tests.support.commands import ROOT, end_with_parent

SET_PATH = "import json, sys; sys.path = json.loads(sys.argv[1])"
"""Code that gives the collector the import path of the controller."""
CLIENT = Path(__file__).with_name("fork_client.py")
READY = b"r"
NO_THREADS = {"OPENBLAS_NUM_THREADS": "1"}
"""Environment variables by which libraries start no threads when they are imported."""


class Hooks:
    """Hooks for plugins beside pytest's own."""

    def pytest_forked(self, config: pytest.Config) -> None:
        """Replace, in a forked worker before its first test, the objects of `pytest_configure` that
        must belong to one process."""


class Collector:
    """The process that collects the tests, as the controller of a run has it."""

    def __init__(self, config: pytest.Config) -> None:
        self._dir = Path(tempfile.mkdtemp(prefix="switchyard-collector-"))
        paths = [str(ROOT), *(path for path in sys.path if path)]
        arguments = [str(each) for each in config.invocation_params.args]
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self._dir / "socket"))
            listener.listen()
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    f"{SET_PATH}; from tests.support.forks import main; main()",
                    *(json.dumps(each) for each in (paths, arguments)),
                    str(listener.fileno()),
                ],
                pass_fds=[listener.fileno()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | NO_THREADS,
            )

    def lend(self, specs: Sequence[Any]) -> None:
        """Make the workers of these specs forks of the collector. Raises UsageError if the tests
        can't be collected; the reason is on standard error."""
        assert self._process.stdout is not None
        if self._process.stdout.read(1) != READY:
            raise pytest.UsageError("the tests could not be collected")
        for spec in specs:
            if spec.popen and not spec.python:
                spec.python = f"{sys.executable} -S -E {CLIENT} {self._dir / 'socket'}"

    def close(self) -> None:
        self._process.communicate()  # it ends with its standard input
        shutil.rmtree(self._dir)


# --- in the collector -----------------------------------------------------------------------


def main() -> None:
    """Collect the tests, and be forked until the standard input ends."""
    arguments, listener = json.loads(sys.argv[2]), socket.socket(fileno=int(sys.argv[3]))
    sys.argv = ["-c"]
    ready = os.fdopen(os.dup(1), "wb", 0)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)  # the collector's own report of the run is not shown
    try:
        config = _prepareconfig(arguments)
        from xdist import remote  # only now, because pytest must import its plugins itself

        remote.setup_config(config, None)
        vars(config).update(workerinput={}, workeroutput={})
        config.pluginmanager.register(_Forking(listener, ready))
        sys.exit(config.hook.pytest_cmdline_main(config=config))
    except pytest.UsageError as error:
        sys.exit(f"ERROR: {error}")
    except KeyboardInterrupt:
        sys.exit(2)


@cache
def _collected() -> list[pytest.Session | pytest.CollectReport]:
    """Return the list of the session that a fork goes on with, and the reports that its worker
    sends."""
    return []


class _Forking:
    """A plugin that forks workers where the tests would run."""

    def __init__(self, listener: socket.socket, ready: Any) -> None:
        self._listener = listener
        self._ready = ready

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        _collected().append(session)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            _collected().append(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Return at the end of the run. Never returns in a fork."""
        session.config.pluginmanager.getplugin("capturemanager").stop_global_capturing()
        if len(os.listdir("/proc/self/task")) > threading.active_count():
            sys.stderr.write("ERROR: a library that a module of tests imports starts threads\n")
            return True
        for name in NO_THREADS:
            del os.environ[name]  # processes that tests start do not inherit them
        self._ready.write(READY)
        self._ready.close()
        while True:
            ready, _, _ = select.select([self._listener, sys.stdin], [], [])
            if sys.stdin in ready:
                _wait_for_ended()
                return True
            client, _ = self._listener.accept()
            streams = socket.recv_fds(client, 1, 2)[1]
            if os.fork() == 0:
                self._listener.close()
                _serve(streams)
            for each in (client.detach(), *streams):
                os.close(each)


def _wait_for_ended() -> None:
    """Wait for ended forks, so that their processor time counts for the run."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _serve(streams: list[int]) -> None:
    """Do what is asked on a standard input and output, as a program that xdist starts, and end."""
    try:
        end_with_parent()
        for standard_fd, fd in enumerate(streams):
            os.dup2(fd, standard_fd)
            os.close(fd)
        sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
        exec(eval(sys.stdin.readline()), {"__name__": "__main__"})
    finally:
        sys.stderr.flush()
        os._exit(0)


# --- in a worker ----------------------------------------------------------------------------


def work(channel: Any) -> None:
    """Run tests as a worker of xdist does, with what the collector has collected."""
    from xdist import remote

    workerinput, _, options, _ = channel.receive()
    session, *reports = _collected()
    assert isinstance(session, pytest.Session)
    config = session.config
    os.environ.update(
        PYTEST_XDIST_TESTRUNUID=workerinput["testrunuid"],
        PYTEST_XDIST_WORKER=workerinput["workerid"],
        PYTEST_XDIST_WORKER_COUNT=str(workerinput["workercount"]),
    )
    vars(config)["workerinput"].update(workerinput)
    config.option.basetemp = options.get("basetemp")
    vars(config)["_tmp_path_factory"] = TempPathFactory.from_config(config, _ispytest=True)
    random.seed()
    capturing = config.pluginmanager.getplugin("capturemanager")
    capturing.start_global_capturing()
    capturing.suspend_global_capture()
    config.hook.pytest_forked(config=config)

    interactor = vars(remote)["interactor"] = remote.WorkerInteractor(config, channel)
    interactor.pytest_sessionstart(session)
    interactor.pytest_collection()
    for report in reports:
        assert isinstance(report, pytest.CollectReport)
        interactor.pytest_collectreport(report)
    interactor.pytest_collection_finish(session)
    try:
        interactor.pytest_runtestloop(session)
        failed = session.testsfailed
        session.exitstatus = pytest.ExitCode.TESTS_FAILED if failed else pytest.ExitCode.OK
    except (KeyboardInterrupt, pytest.exit.Exception):
        session.exitstatus = pytest.ExitCode.INTERRUPTED
    except BaseException:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        config.notify_exception(pytest.ExceptionInfo.from_current(), config.option)
    finally:
        config.hook.pytest_sessionfinish(session=session, exitstatus=session.exitstatus)
        config._ensure_unconfigure()
