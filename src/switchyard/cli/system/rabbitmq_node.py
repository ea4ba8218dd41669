"""A private RabbitMQ node, started from an installed package and ended with its owner.

`jobctl demo` and `jobctl up` use it where no broker is at hand, and the tests for everything.
It runs as the current user, keeps all it writes under one directory, listens on 127.0.0.1 alone
(AMQP, management, distribution and epmd), has one user with a random password and no guest.
"""

import base64
import json
import re
import secrets
import signal
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self
from urllib.parse import quote

from switchyard.cli.base.errors import CommandFailed
from switchyard.cli.system.free_ports import LOOPBACK, free_port, is_free
from switchyard.cli.system.rabbitmq_config import CONTROL, NodeSetup, write_private

SCRIPTS = Path("/usr/lib/rabbitmq/bin")
START_TIMEOUT = 90.0
STOP_TIMEOUT = 20.0
LOG_TAIL_LINES = 25
PORTS = ("amqp_port", "management_port")
"""The ports that a node must have again at its next start."""
HOSTNAME_ERROR = "epmd error for host"
"""Beginning of RabbitMQ's error where Erlang can't find the host of the node's name."""
CRASH_REPORT = re.compile(r"^.*\[error\].* (?:supervisor: |crasher:)", re.MULTILINE)


class LocalNodeError(CommandFailed):
    """A private broker could not be started, stopped or asked; the message says what to do."""

    keeps_lines = True
    """The message ends with the last lines of the node's log: keep the line breaks."""


class NotInstalledError(LocalNodeError):
    """There is no RabbitMQ on this machine to start."""


class StartError(LocalNodeError):
    """The node did not become ready; the message ends with the tail of its log."""


class CommandError(LocalNodeError):
    """rabbitmqctl failed; the message ends with what it said."""


class HasPid(Protocol):
    """A process with a process id, such as `subprocess.Popen`."""

    pid: int


class LocalNode:
    """One RabbitMQ node that this process owns. Also a context manager: starts, then stops.

    The node ends when its owner does, even if the owner is killed. Its data stay in `base_dir`:
    a second node on the same directory continues where the first one ended.
    """

    def __init__(
        self,
        *,
        base_dir: Path,
        amqp_port: int = 0,
        management_port: int = 0,
        dist_port: int = 0,
        epmd_port: int = 0,
        prometheus_port: int | None = None,
        definitions: Path | None = None,
        advanced: str | None = None,
        extra_config: Mapping[str, str] | None = None,
        user: str = "switchyard",
        password: str | None = None,
        name: str = "switchyard",
        cookie: str | None = None,
        epmd: bool = True,
    ) -> None:
        """Nothing is started or written yet.

        A port of 0 stands for a free one, a `prometheus_port` of None for no metrics.
        `definitions` is a file to load at every start, `advanced` the text of an advanced.config,
        `extra_config` further lines of rabbitmq.conf. `password` is made at random unless given.

        Nodes of one cluster have names of their own, one `cookie`, and one `epmd_port`: with
        `epmd=False` somebody else's name server is there.
        """
        self._scripts = self._find_scripts()
        self._setup = self._make_setup(
            base_dir=base_dir.absolute(),
            amqp_port=amqp_port or free_port(),
            management_port=management_port or free_port(),
            dist_port=dist_port or free_port(),
            epmd_port=epmd_port or free_port(),
            prometheus_port=free_port() if prometheus_port == 0 else prometheus_port,
            definitions=definitions,
            advanced=advanced,
            extra_config=dict(extra_config or {}),
            user=user,
            password=password or secrets.token_urlsafe(24),
            name=name,
            cookie=cookie,
        )
        self.base_dir = self._setup.base_dir
        self.amqp_port = self._setup.amqp_port
        self.management_port = self._setup.management_port
        self.dist_port = self._setup.dist_port
        self.epmd_port = self._setup.epmd_port
        self.prometheus_port = self._setup.prometheus_port
        self.user = self._setup.user
        self.password = self._setup.password
        self.name = name
        self._own_epmd = epmd
        self._broker: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        self._reaper: subprocess.Popen[bytes] | None = None
        self._version: str | None = None
        self._log_start = 0

    def _find_scripts(self) -> Path:
        """Return the directory of RabbitMQ's own scripts. Raises NotInstalledError."""
        scripts = find_installed()
        if scripts is None:
            raise NotInstalledError(
                "RabbitMQ is not installed on this machine: apt-get install rabbitmq-server, "
                "or set JOBS_AMQP_URL to a broker elsewhere"
            )
        return scripts

    def _make_setup(self, **choices: Any) -> NodeSetup:
        """Return the configuration of the node; a subclass may add to it."""
        return NodeSetup(**choices)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def amqp_url(self) -> str:
        """AMQP address of the default vhost, with credentials."""
        return self.amqp_url_of("/")

    def amqp_url_of(self, vhost: str) -> str:
        """Return the AMQP address of a vhost, with credentials."""
        login = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}"
        return f"amqp://{login}@{LOOPBACK}:{self.amqp_port}/{quote(vhost, safe='')}"

    @property
    def management_url(self) -> str:
        """Address of the management plugin, with credentials and without a path."""
        login = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}"
        return f"http://{login}@{LOOPBACK}:{self.management_port}"

    @property
    def is_running(self) -> bool:
        """Whether the process exists; it may still be starting or stopping."""
        return self._broker is not None and self._broker.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the node. Raises LocalNodeError while it is not running."""
        if self._broker is None or not self.is_running:
            raise LocalNodeError("The node is not running: start() it first")
        return self._broker.pid

    @property
    def version(self) -> str:
        """Version of RabbitMQ, for example "3.10.8". Raises LocalNodeError before the first
        start."""
        if self._version is None:
            raise LocalNodeError("The version is known once the node has been started: start()")
        return self._version

    @property
    def log(self) -> Path:
        """File with the node's log, to which each start appends."""
        return self.base_dir / "log" / "rabbit.log"

    @property
    def control(self) -> Path:
        """A `rabbitmqctl` for this node, to be called from any shell of this user."""
        return self.base_dir / CONTROL

    @property
    def log_tail(self) -> str:
        """The last lines of the log since the last start. If the node could not start: the last
        lines before Erlang's crash reports, which repeat the same at length."""
        if not self.log.exists():
            return ""
        text = self.log.read_bytes()[self._log_start :].decode(errors="replace")
        if "BOOT FAILED" in text:
            text = CRASH_REPORT.split(text)[0]
        return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])

    def start(self, timeout: float = START_TIMEOUT) -> None:
        """Return once AMQP and management answer. Raises StartError after `timeout` seconds."""
        self.begin()
        self.wait_until_ready(timeout)

    def begin(self) -> None:
        """Start the node's process, and do not wait for it: `wait_until_ready` does."""
        if self.is_running:
            raise LocalNodeError("The node is running already: stop() it first")
        self._setup.write()
        self._setup.write_control(self._scripts)
        try:
            with self.log.open("ab") as log:
                self._log_start = log.tell()
                if self._own_epmd:
                    # In the foreground: the daemon that Erlang starts by itself would stay.
                    self._epmd = self._spawn(["epmd"], log)
                self._broker = self._spawn([str(self._scripts / "rabbitmq-server")], log)
            started = [each for each in (self._broker, self._epmd) if each is not None]
            self._reaper = end_with_this_process(*started)
        except BaseException:
            self.kill()
            raise

    def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """End the node in good order; kill it if it takes more than `timeout` seconds."""
        if self._broker is not None and self.is_running:
            self._broker.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._broker.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """Kill the node, as in a crash. Returns when its ports are free again."""
        # The reaper ends first: the process ids that it knows may be reused by other processes.
        for process in (self._reaper, self._broker, self._epmd):
            if process is not None:
                process.kill()
                process.wait()
                if process.stdin is not None:
                    process.stdin.close()
        self._reaper = self._broker = self._epmd = None

    def restart(self) -> None:
        """Stop if need be, and start again on the same ports with the same data."""
        self.stop()
        self.start()

    def rabbitmqctl(self, *arguments: str, timeout: float = 60.0) -> str:
        """Run a command of rabbitmqctl and return its output. Raises CommandError, also after
        `timeout` seconds."""
        command = [str(self._scripts / "rabbitmqctl"), "--quiet", *arguments]
        name = f"rabbitmqctl {' '.join(arguments[:1])}"
        try:
            done = subprocess.run(
                command,
                env=self._setup.environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CommandError(
                f"{name} did not answer in {timeout:g} s. "
                f"The end of the node's log:\n{self.log_tail}"
            ) from error
        if done.returncode:
            raise CommandError(f"{name} failed ({done.returncode}):\n{done.stderr or done.stdout}")
        return done.stdout

    def _spawn(self, command: list[str], log: BinaryIO) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            env=self._setup.environment(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Ctrl-C reaches this process alone, which then stops the node in good order.
            start_new_session=True,
        )

    def wait_until_ready(self, timeout: float = START_TIMEOUT) -> None:
        """Return once AMQP and management answer; the node is killed where that takes longer than
        `timeout` seconds. Raises StartError."""
        try:
            self._wait_until_ready(timeout)
        except BaseException:
            self.kill()
            raise

    def _wait_until_ready(self, timeout: float) -> None:
        broker = self._broker
        deadline = time.monotonic() + timeout
        while self.is_running and time.monotonic() < deadline:
            # The AMQP listener is the last thing to come up.
            if self._ask(f"/api/health/checks/port-listener/{self.amqp_port}") is not None:
                overview = self._ask("/api/overview") or {}
                self._version = overview.get("rabbitmq_version")
                return
            time.sleep(0.1)
        if broker is None or self.is_running:
            what = f"was not ready after {timeout:g} s"
        else:
            what = f"ended with {describe_exit(broker.returncode)} while it started"
        raise StartError(
            f"RabbitMQ {what} (ports {self.amqp_port}, {self.management_port}, {self.dist_port}, "
            f"{self.epmd_port}; log: {self.log}).{start_remedy(self.log_tail)} "
            f"The end of its log:\n{self.log_tail}"
        )

    def _ask(self, path: str) -> dict[str, Any] | None:
        """Ask the management plugin, and return its answer; None for a refusal or no answer."""
        login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        url = f"http://{LOOPBACK}:{self.management_port}{path}"
        request = urllib.request.Request(url, headers={"Authorization": f"Basic {login}"})
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(request, timeout=5) as answer:
                values: dict[str, Any] = json.load(answer)
                return values
        except (OSError, ValueError):
            return None


def start_remedy(log: str) -> str:
    """Return what to do about a failed start, as a sentence after a space; empty where the log says
    it itself."""
    if HOSTNAME_ERROR not in log:
        return ""
    return " This host does not know the name localhost: /etc/hosts needs `127.0.0.1 localhost`."


def find_installed() -> Path | None:
    """Return the directory of RabbitMQ's own scripts on this machine; None where there is none."""
    return SCRIPTS if (SCRIPTS / "rabbitmq-server").exists() else None


def end_with_this_process(*processes: HasPid) -> subprocess.Popen[bytes]:
    """Start a process that kills the others when this one ends, however it ends.

    It reads from a pipe of which only we hold the other end.
    """
    pids = [str(process.pid) for process in processes]
    return subprocess.Popen(
        ["sh", "-c", 'read -r _; kill -KILL "$@"', "-", *pids],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def describe_exit(code: int) -> str:
    """Name the signal that has ended a process, or its exit code, from a `returncode`."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


@dataclass(frozen=True, slots=True)
class NodeFile:
    """File with password and ports of a node for its next start, which only its owner may read: so
    the node's address stays the same."""

    path: Path

    def read(self) -> dict[str, Any]:
        """Read options for LocalNode; ports that are in use now are left out."""
        try:
            values = json.loads(self.path.read_text())
            password = str(values["password"])
            ports = {name: int(values[name]) for name in PORTS}
        except (OSError, ValueError, KeyError, TypeError):
            return {}  # the first start, or a damaged file: new values are made
        free = {name: port for name, port in ports.items() if is_free(port)}
        return {"password": password, **free}

    def write(self, node: LocalNode) -> None:
        values = {"password": node.password} | {name: getattr(node, name) for name in PORTS}
        write_private(self.path, json.dumps(values))
