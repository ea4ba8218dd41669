"""Processes of `jobctl` forked from one that has loaded what they all need.

Importing it takes a worker two seconds of processor time and 75 MB; a fork takes a few
milliseconds, and shares those pages with all others. The spawner must hold nothing that belongs to
one process: it is itself forked before there is a thread, an event loop or a connection, and it
loads no module of a user's.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, NoReturn, Protocol, cast

from switchyard.cli.base.errors import FAILED, CommandFailed
from switchyard.services.common.light_imports import leave_out_unused

if TYPE_CHECKING:
    from switchyard.cli.base.lazy_command import LazyCommand

SHARED_MODULES = (
    "aio_pika",
    "encodings.idna",  # of every lookup of a host's name
    "sqlalchemy.dialects.sqlite",
    "switchyard.broker.topology.build",
    "switchyard.broker.topology.reconcile",
    "switchyard.broker.wire.depths",
    "switchyard.cli.base.long_running",
    "switchyard.cli.base.stopping",
    "switchyard.cli.process.scheduler",
    "switchyard.cli.process.worker",
    "switchyard.cli.system.local_system",
    "switchyard.services.common.logs",
    "switchyard.services.common.settings",
    "switchyard.services.common.tracing",
    "switchyard.services.engine.bulk.runner",
    "switchyard.services.engine.identity.broker",
    "switchyard.services.engine.identity.claiming",
    "switchyard.services.engine.ledger",
    "switchyard.services.engine.monitoring.loop_watch",
    "switchyard.services.engine.monitoring.startup",
    "switchyard.services.engine.monitoring.system_metrics",
    "switchyard.services.engine.runtime.worker",
    "switchyard.services.engine.scheduler.duties",
    "switchyard.services.engine.scheduler.scheduler",
    "switchyard.services.engine.schedules.file",
)
"""Modules that most of the processes import."""
API_MODULES = ("switchyard.cli.process.api", "switchyard.api.server")
"""Modules that the HTTP API imports, where its extra is installed."""
WING_LEDGERS: Mapping[str, str] = MappingProxyType(
    {"llm": "switchyard.services.llm.ledger", "pipeline": "switchyard.services.pipeline.ledger"}
)
"""Wing → package with its repositories."""
POSTGRES_MODULES = ("asyncpg", "sqlalchemy.dialects.postgresql.asyncpg", "sqlalchemy.ext.asyncio")
"""Modules that a ledger on PostgreSQL imports, and one on SQLite does not."""
PROGRAM = "switchyard.cli.main"
"""Module that is run in a fork, as by the interpreter: it has all commands."""
COMMANDS = (("worker", "ingest"), ("scheduler",), ("api",))
"""Arguments of the commands that are forked."""
NO_LEDGER = "sqlite+aiosqlite:////nowhere/ledger.db"
"""Address of a ledger that is never opened."""
ANSWER_TIMEOUT = 60.0
"""Seconds after which a spawner that has not answered counts as dead; enough on a busy machine."""
UNKNOWN_CODE = 255
"""Exit code of a process whose real one is unknown, as its spawner died before."""
POLL_INTERVAL = 0.05
_GONE = "the process that others are forked from has ended: start `jobctl up` again"
_PR_SET_NAME = 15  # of prctl(2)


class ChildProcess(Protocol):
    """The part of `subprocess.Popen` that a supervisor uses."""

    pid: int
    returncode: int | Any

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...


class ForkedProcess:
    """A command that a Spawner has forked. Its process id is not reused before its exit code was
    read."""

    def __init__(self, spawner: Spawner, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._spawner = spawner
        self._end_descriptor: int | None = None
        """A descriptor that becomes readable when the process has ended; until then the spawner is
        not asked."""
        if open_process := getattr(os, "pidfd_open", None):
            with suppress(OSError):  # an older kernel
                self._end_descriptor = open_process(pid)

    def poll(self) -> int | None:
        """Return the exit code, as `Popen.poll` does; None while it runs."""
        if self.returncode is None and not self._runs():
            self.returncode = self._spawner.exit_code_of(self.pid)
            if self.returncode is not None and self._end_descriptor is not None:
                os.close(self._end_descriptor)
                self._end_descriptor = None
        return self.returncode

    def _runs(self) -> bool:
        """Tell whether the process certainly still runs."""
        if self._end_descriptor is None:
            return False
        poller = select.poll()
        poller.register(self._end_descriptor, select.POLLIN)
        return not poller.poll(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code. Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(POLL_INTERVAL)
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal to the process; do nothing if it has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)


class Spawner:
    """The process that commands are forked from; it ends with the process that made it."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        channel.settimeout(ANSWER_TIMEOUT)
        self._channel: socket.socket | None = channel
        self._answers = channel.makefile("rb")
        self._owner = os.getpid()

    @classmethod
    def fork(cls, *, postgres: bool = False, api: bool = True) -> Spawner | None:
        """Import what is shared, for a ledger on PostgreSQL with `postgres`, and begin the process.
        Without `api`, the HTTP API can be started, too, but loads its modules itself.

        Call it before anything starts a thread or opens a connection; None where that has happened,
        or where the system's own libraries have threads.
        """
        gc.disable()  # nothing of the imports is garbage: a collection would cost a second
        try:
            load_shared_modules(postgres=postgres, api=api)
            gc.freeze()  # a collection writes into objects, and so would copy their pages
        finally:
            gc.enable()
        if sys.platform != "linux" or len(os.listdir("/proc/self/task")) > 1:
            return None
        sys.stdout.flush()
        sys.stderr.flush()
        ours, theirs = socket.socketpair()
        if pid := os.fork():
            theirs.close()
            ours.recv(1)  # until the child has closed what belongs to this process
            return cls(pid, ours)
        try:
            channel = _close_inherited(theirs)
            channel.sendall(b"\n")
            _serve(channel)
        finally:
            os._exit(FAILED)

    def start(
        self, arguments: tuple[str, ...], environment: Mapping[str, str], log: Path
    ) -> ForkedProcess:
        """Run `jobctl ARGUMENTS…` in a session of its own, with its output at the end of `log`.

        Raises OSError where there is no memory for a process, and SpawnerGone.
        """
        request = {"arguments": arguments, "environment": dict(environment), "log": str(log)}
        answer = self._ask(request)
        if "error" in answer:
            raise OSError(answer["error"], os.strerror(answer["error"]))
        return ForkedProcess(self, answer["pid"])

    def exit_code_of(self, pid: int) -> int | None:
        """Return the exit code of a process that this one has started; None while it runs."""
        try:
            code: int | None = self._ask({"pid": pid})["code"]
        except SpawnerGone:
            return _exit_code_of_orphan(pid)
        return code

    def stop(self) -> None:
        """End the spawner; the processes that it has started go on."""
        if self._channel is not None:
            self._channel.close()
            self._answers.close()
            self._channel = None
            os.waitpid(self.pid, 0)

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if self._channel is None:
            raise SpawnerGone(_GONE)
        try:
            self._channel.sendall(json.dumps(request).encode() + b"\n")
            answer: dict[str, Any] = json.loads(self._answers.readline())
        except (OSError, ValueError) as error:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)  # it hangs, and must not answer later
            self.stop()
            raise SpawnerGone(_GONE) from error
        return answer


class SpawnerGone(CommandFailed):
    """The spawner was killed; a supervisor then starts processes without it."""


def load_shared_modules(*, postgres: bool = False, api: bool = True) -> None:
    """Import SHARED_MODULES, with `postgres` POSTGRES_MODULES, the built-in job types, and with
    `api` the API if it is installed; do the work that each process would otherwise do at its
    start."""
    leave_out_unused()
    for name in (*SHARED_MODULES, *(POSTGRES_MODULES if postgres else ())):
        import_module(name)
    _load_wings()
    if api and find_spec("fastapi") is not None:
        for name in API_MODULES:
            import_module(name)
    _fill_caches()


def _fill_caches() -> None:
    """Do what each process does at its start, as far as that starts no thread: what libraries cache
    is then shared, which saves 5 MB for each process."""
    from switchyard.cli.base.common import load_settings, run
    from switchyard.services.common.logs import quiet_libraries
    from switchyard.services.engine.ledger import Ledger

    program = import_module(PROGRAM).shared_commands()
    for arguments in COMMANDS:
        command = cast("LazyCommand", program.commands[arguments[0]])
        with program.make_context("jobctl", list(arguments)) as context:
            command.make_context(arguments[0], list(arguments[1:]), parent=context)
    # Again: caches of abstract classes are dropped when further subclasses are made.
    load_settings()
    run(Ledger.open(NO_LEDGER))
    quiet_libraries()


def _load_wings() -> None:
    """Import what the installed wings bring to workers and scheduler, and make the JSON Schemas of
    their job types, which are kept."""
    from switchyard.services.engine.jobs.registered_types import record_of
    from switchyard.services.engine.jobs.registry import Registry
    from switchyard.services.engine.wings import (
        job_modules,
        load_contributions,
        load_wings,
        source_modules,
    )

    for job_type in Registry.load(job_modules()):
        record_of(job_type, "")
    for name in source_modules():
        import_module(name)
    for what in ("periodic_duties", "metrics", "delayed_jobs"):
        list(load_contributions(what))
    for wing in load_wings():
        if package := WING_LEDGERS.get(wing.name):
            for each in iter_modules(import_module(package).__path__, f"{package}."):
                import_module(each.name)


def _exit_code_of_orphan(pid: int) -> int | None:
    """Return the exit code where it can be known; None while it runs. The first process of a
    container gets all orphans as its children."""
    with suppress(ChildProcessError):
        ended, status = os.waitpid(pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if ended else None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return UNKNOWN_CODE
    return None


# --- in the spawner's process -------------------------------------------------------------------


def _close_inherited(channel: socket.socket) -> socket.socket:
    """Close everything of the parent's but its standard streams: locks, pipes and sockets."""
    os.setsid()  # Ctrl-C is for the parent: this process ends with it
    os.dup2(channel.fileno(), 3)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    channel.detach()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _set_process_title("jobctl", "spawner")
    return socket.socket(fileno=3)


def _serve(channel: socket.socket) -> None:
    """Answer requests, to fork a command or for an exit code, until the requesting process has
    ended."""
    requests = channel.makefile("rb")
    for line in requests:
        request = json.loads(line)
        if "pid" in request:
            ended, status = os.waitpid(request["pid"], os.WNOHANG)
            answer = {"code": os.waitstatus_to_exitcode(status) if ended else None}
        else:
            answer = _fork_command(request, channel, requests)
        channel.sendall(json.dumps(answer).encode() + b"\n")


def _fork_command(
    request: dict[str, Any], channel: socket.socket, requests: IO[bytes]
) -> dict[str, Any]:
    """Fork a command. Return the answer, in the spawner; the child does not return."""
    began, to_begin = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(began)
        os.close(to_begin)
        return {"error": error.errno}
    if pid == 0:
        try:
            os.close(began)
            requests.close()
            channel.close()
            os.setsid()  # the whole group of a process is killed with it
            os.close(to_begin)
            _run(request["arguments"], request["environment"], request["log"])
        finally:
            os._exit(FAILED)
    os.close(to_begin)
    select.select([began], [], [])  # until it has a group of its own, which can be killed
    os.close(began)
    return {"pid": pid}


def _run(arguments: list[str], environment: dict[str, str], log: str) -> NoReturn:
    """Be `jobctl ARGUMENTS…`, as if it had been started in that environment."""
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, standard in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(fd, standard)
    os.close(nothing)
    os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    here = os.getcwd()  # as with -P: what lies here must not take the place of a module of ours
    sys.path[:] = [each for each in sys.path if each not in ("", here)]
    sys.argv = ["jobctl", *arguments]
    _set_process_title("jobctl", *arguments)
    try:
        import_module(PROGRAM).main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else FAILED
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = FAILED
    # As the interpreter ends, but for taking all modules apart, which would copy every page.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _set_process_title(*arguments: str) -> None:
    """Show the process under these arguments in `ps`, cut to the length of the arguments of the
    program that it was forked from. Only Linux keeps them where a program may write."""
    if sys.platform != "linux":
        return
    import ctypes

    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5)
    shown = b"\0".join(each.encode() for each in arguments)[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, arguments[0].encode(), 0, 0, 0)
