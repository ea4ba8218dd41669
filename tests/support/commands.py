"""`jobctl` without the half second of its start: each command runs in a fork of one process.

That process, the run's `CommandForkServer`, has imported the modules that commands need and built
what they build at first use, and does nothing else. Each command has a process of its own with its
own environment, directory and standard streams; it ends as usual (`_end`), or with the process that
started it. A module with a `main`, such as a program of the tests, can be run in the same way.
The real start of `jobctl` is tested with
`CommandLine.launched`, tests/acceptance/test_system.py and tests/unit/test_cli_start.py.
"""

from __future__ import annotations

import array
import asyncio
import atexit
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.loop_guard import REPORTS, guard_process

ROOT = Path(__file__).parents[2]
PRELOADED_MODULES = (
    "aio_pika",
    "asyncpg",
    "anyio._backends._asyncio",
    "alembic.command",
    "alembic.config",
    "switchyard.broker.management.client",
    "switchyard.broker.publish.publisher",
    "switchyard.broker.topology.definitions",
    "switchyard.broker.topology.reconcile",
    "httpx",
    "httpcore",
    "lance_namespace",  # two thirds of what LanceDB takes to load; the rest starts threads
    "switchyard.api.client",
    "switchyard.api.server",
    "pydantic_settings",
    "switchyard.services.engine.dead.indexing",
    "switchyard.services.engine.ledger",
    "switchyard.services.common.logs",
    "switchyard.services.engine.publishing.publisher",
    "switchyard.services.engine.redrive.handler",
    "switchyard.services.common.settings",
    "sqlalchemy.ext.asyncio",
    "structlog",
    "tests.support.claiming",
    "tests.support.llm_process",
    "tests.support.worker_process",
)
"""Modules that commands import when they run, beside the built-in job types. A missing one costs
every command time."""
JOBCTL = "switchyard.cli.main"
LARGE_PAGE = 2 * 1024 * 1024
_COLLAPSE = 25  # of madvise(2)
_FDS = 4
_SET_PARENT_DEATH_SIGNAL = 1  # of prctl(2)


class CommandForkServer:
    """The process whose forks run commands, for all processes that connect to its socket. It ends
    with the process that made it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(path))
            listener.listen()
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(listener.fileno())],
                pass_fds=[listener.fileno()],
                stdin=subprocess.PIPE,
                cwd=ROOT,
                env={name: value for name, value in os.environ.items() if name[:5] != "JOBS_"},
                start_new_session=True,
            )

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


class Commands:
    """Runs commands in forks of a CommandForkServer's process; they end with this process."""

    def __init__(self, fork_server: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(str(fork_server))
        self.fork_server = fork_server
        self.pid = int(self._socket.recv(32))
        """Id of the process whose children the commands are."""

    def run(
        self,
        arguments: list[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        stdin: str,
        timeout: float,
        screen: int | None = None,
        module: str = JOBCTL,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as `subprocess.run` would, capturing its output; or let it print to the
        terminal whose descriptor `screen` is."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            stdin_fd, to_write = os.pipe()
            try:
                printed = (out.fileno(), err.fileno()) if screen is None else (screen, screen)
                command = self._begin(module, arguments, env, cwd, (stdin_fd, *printed))
            finally:
                os.close(stdin_fd)
            threading.Thread(target=_write, args=(to_write, stdin), daemon=True).start()
            with command:
                try:
                    code = command.wait(timeout)
                except subprocess.TimeoutExpired:
                    command.kill()
                    raise
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(
                arguments, code, out.read().decode(), err.read().decode()
            )

    def start(
        self,
        arguments: list[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        output: int,
        errors: int | None = None,
        stdin: int | None = None,
        module: str = JOBCTL,
    ) -> Running:
        """Start a command in its own process group, and return at once. It prints to the descriptor
        `output`, and errors to `errors` if given; without `stdin` its input is empty."""
        with open(os.devnull, "rb") as nothing:
            input_fd = nothing.fileno() if stdin is None else stdin
            streams = (input_fd, output, output if errors is None else errors)
            return self._begin(module, arguments, env, cwd, streams)

    def _begin(
        self,
        module: str,
        arguments: list[str],
        env: Mapping[str, str],
        cwd: Path,
        streams: tuple[int, int, int],
    ) -> Running:
        guard_environment = {REPORTS: os.environ[REPORTS]} if REPORTS in os.environ else {}
        request = json.dumps(
            {
                "module": module,
                "arguments": arguments,
                "env": {**env, **guard_environment},
                "cwd": str(cwd),
            }
        )
        answer, to_answer = os.pipe()
        try:
            fds = array.array("i", [*streams, to_answer])
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
            self._socket.sendmsg([request.encode()], ancillary)
        finally:
            os.close(to_answer)
        return Running(arguments, answer)


class Running:
    """A command that runs; the part of `subprocess.Popen` that tests use."""

    def __init__(self, arguments: list[str], answer: int) -> None:
        self.arguments = arguments
        self.returncode: int | None = None
        self._reading = threading.Lock()
        self._answer = open(answer, "rb", buffering=0)  # noqa: SIM115 - as long as this lives
        self.pid = int(self._answer.readline())

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *exc: object) -> None:
        self._answer.close()

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._answer], [], [], 0)[0]:
            return self._read_exit_code()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._answer], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.arguments, timeout or 0)
            return self._read_exit_code()
        return self.returncode

    def _read_exit_code(self) -> int:
        with self._reading:  # several threads may wait for it
            if self.returncode is None:
                self.returncode = int(self._answer.readline())
            return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # ended, but its exit code has not arrived
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@cache
def commands() -> Commands:
    """Return the commands of this process: forked by the run's fork server or, without a run, by
    one of its own."""
    from tests.support.servers import ADDRESS, ask_for

    if ADDRESS in os.environ:
        return Commands(ask_for("commands")["path"])
    return Commands(_own_fork_server().path)


def write_jobctl(folder: Path) -> Path:
    """Write a program `jobctl` into a folder, for a shell's PATH: its commands are forks, too."""
    program = folder / "jobctl"
    program.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.support.commands import Commands, Path\n"
        f"commands = Commands(Path({str(commands().fork_server)!r}))\n"
        "streams = {'stdin': 0, 'output': 1, 'errors': 2}\n"
        "run = commands.start(sys.argv[1:], env=os.environ, cwd=Path.cwd(), **streams)\n"
        "sys.exit(run.wait())\n"
    )
    program.chmod(0o755)
    return program


@cache
def _own_fork_server() -> CommandForkServer:
    return CommandForkServer(Path(tempfile.mkdtemp(prefix="switchyard-commands-")) / "socket")


async def jobctl(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with nothing else in its environment."""
    runner = commands()
    return await asyncio.to_thread(
        runner.run, list(arguments), env=environment, cwd=ROOT, stdin="", timeout=60
    )


def _write(fd: int, text: str) -> None:
    try:
        with open(fd, "w", encoding="utf-8") as pipe:
            pipe.write(text)
    except BrokenPipeError:
        pass  # the command does not read its input


# --- what runs in the process ---------------------------------------------------------------


def _serve_all(listener: socket.socket) -> str:
    """Return in each command's process only, with the name of the module to run."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the serving processes are not waited for
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            os._exit(0)  # the process that started this one has ended
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            connection.send(str(os.getpid()).encode())
            return _serve(connection)
        connection.close()


def _serve(requests: socket.socket) -> str:
    """Return in each command's process only, with the name of the module to run."""
    answers: dict[int, int] = {}
    """By process id, the descriptor to which its exit code is written."""

    def reap(*_: object) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                _send_number(answers[pid], os.waitstatus_to_exitcode(status))
                os.close(answers.pop(pid))

    signal.signal(signal.SIGCHLD, reap)
    while True:
        request, fds, _, _ = socket.recv_fds(requests, 1 << 20, _FDS)
        if not request:
            os._exit(0)  # the requesting process has ended
        # Until its id is sent, so that the end of a short process is not reported before.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            requests.close()
            for answer in answers.values():
                os.close(answer)
            return _begin(json.loads(request), *fds)
        os.setpgid(pid, pid)  # before the caller can kill the group
        *streams, answers[pid] = fds
        for fd in streams:
            os.close(fd)
        _send_number(answers[pid], pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def _send_number(answer: int, number: int) -> None:
    with suppress(BrokenPipeError):  # nobody reads it any more
        os.write(answer, f"{number}\n".encode())


def _begin(request: dict[str, Any], stdin: int, stdout: int, stderr: int, answer: int) -> str:
    """Set up a command's process. Return the name of the module that it is to run."""
    end_with_parent()
    os.close(answer)
    for fd, standard in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(fd, standard)
        os.close(fd)
    os.setpgid(0, 0)
    # Children by multiprocessing import the command's program, as they do for users.
    program = sys.modules["__main__"]
    program.__spec__, program.__file__ = None, str(Path(sys.executable).parent / "jobctl")
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["jobctl", *request["arguments"]]
    guard_process(request["env"])
    module: str = request["module"]
    if module != JOBCTL:  # as `python -m` begins
        path = request["env"].get("PYTHONPATH", "")
        sys.path[:0] = [request["cwd"], *filter(None, path.split(os.pathsep))]
    return module


def _make_parameters(command: Any) -> None:
    """Build the readers of parameters of a command and its subcommands."""
    command = getattr(command, "loaded", command)
    for parameter in command.params:
        parameter.get_runtime_param()
    for inner in getattr(command, "commands", {}).values():
        _make_parameters(inner)


def _end(main: Callable[[], object]) -> None:
    """Run a command, and end like the interpreter, but without tearing modules down: that would
    copy every page of the forked process, and took three quarters of a command's time."""
    try:
        main()
        code = 0
    except SystemExit as error:
        if not isinstance(error.code, int | None):
            raise
        code = error.code or 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.exit(code)  # the interpreter reports that it can't write
    os._exit(code)


def _use_large_pages() -> None:
    """Use pages of 2 MiB for this process's memory if the kernel can, because each fork copies the
    page table."""
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, _, _, inode, *name = line.split()
        if rights == "rw-p" and inode == "0" and name in ([], ["[heap]"]):
            start, end = (int(each, 16) for each in addresses.split("-"))
            start, end = -(-start // LARGE_PAGE) * LARGE_PAGE, end // LARGE_PAGE * LARGE_PAGE
            for address in range(start, end, LARGE_PAGE):
                advise(address, LARGE_PAGE, _COLLAPSE)


def end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


if __name__ == "__main__":
    from switchyard import cli
    from switchyard.cli.main import shared_commands
    from switchyard.cli.system.spawner import load_shared_modules

    load_shared_modules(postgres=True)  # first: it skips the modules that a real start skips
    for module in pkgutil.walk_packages(cli.__path__, f"{cli.__name__}."):
        importlib.import_module(module.name)
    for name in PRELOADED_MODULES:
        importlib.import_module(name)
    _make_parameters(shared_commands())
    sys.path.pop(0)  # the working directory, which is not in the path of `jobctl`
    gc.freeze()  # otherwise the collector of a command would visit and so copy it all
    _use_large_pages()
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork has no threads"
    _end(importlib.import_module(_serve_all(socket.socket(fileno=int(sys.argv[1])))).main)
