"""A private RabbitMQ node, started from an installed package and ended with its owner.

`jobctl demo` and `jobctl up` use it where no broker is at hand, and the tests for everything.
It runs as the current user, keeps all it writes under one directory, listens on 127.0.0.1 alone
(AMQP, management, distribution and epmd), has one user with a random password and no guest.
"""

import base64
import hashlib
import json
import random
import re
import secrets
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self
from urllib.parse import quote

from switchyard.cli.base.errors import CommandFailed
from switchyard.cli.system.foreign_root import link_erlang

LOOPBACK = "127.0.0.1"
SCRIPTS = Path("/usr/lib/rabbitmq/bin")
START_TIMEOUT = 90.0
STOP_TIMEOUT = 20.0
LOG_TAIL_LINES = 25
# Where a node out of another Debian's root has that root's Erlang, in its own directory.
ERLANG = "erlang"
CRASH_REPORT = re.compile(r"^.*\[error\].* (?:supervisor: |crasher:)", re.MULTILINE)
# Below the range from which Linux takes the ports of outgoing connections.
FREE_PORTS = range(20_000, 32_000)


class LocalNodeError(CommandFailed):
    """A private broker could not be started, stopped or asked; the message says what to do."""

    keeps_lines = True
    """The message ends with the node's last words, which are lines of their own."""


class NotInstalledError(LocalNodeError):
    """There is no RabbitMQ on this machine to start."""


class StartError(LocalNodeError):
    """The node did not become ready; the message ends with the tail of its log."""


class CommandError(LocalNodeError):
    """rabbitmqctl failed; the message ends with what it said."""


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
        root: Path | None = None,
        definitions: Path | None = None,
        advanced: str | None = None,
        extra_config: Mapping[str, str] | None = None,
        user: str = "switchyard",
        password: str | None = None,
    ) -> None:
        """Nothing is started or written yet.

        A port of 0 stands for a free one, a `prometheus_port` of None for no metrics.
        `root` is a Debian root directory with RabbitMQ in it, to run another version than the
        machine's own. `definitions` is a file to load at every start, `advanced` the text of an
        advanced.config, `extra_config` further lines of rabbitmq.conf. `password` is made at
        random unless given.
        """
        if find_installed(root) is None:
            where = f"under {root}" if root else "on this machine"
            raise NotInstalledError(
                f"RabbitMQ is not installed {where}: apt-get install rabbitmq-server, "
                "or set JOBS_AMQP_URL to a broker elsewhere"
            )
        self.base_dir = base_dir.absolute()
        self.amqp_port = amqp_port or free_port()
        self.management_port = management_port or free_port()
        self.dist_port = dist_port or free_port()
        self.epmd_port = epmd_port or free_port()
        self.prometheus_port = free_port() if prometheus_port == 0 else prometheus_port
        self.user = user
        self.password = password or secrets.token_urlsafe(24)
        self._root = root.absolute() if root else None
        self._scripts = self._root / SCRIPTS.relative_to("/") if self._root else SCRIPTS
        self._definitions = definitions
        self._advanced = advanced
        self._extra_config = dict(extra_config or {})
        self._broker: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        self._reaper: subprocess.Popen[bytes] | None = None
        self._version: str | None = None
        self._log_start = 0

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
        """With credentials, for the default vhost."""
        return self.amqp_url_of("/")

    def amqp_url_of(self, vhost: str) -> str:
        """With credentials, for that vhost."""
        login = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}"
        return f"amqp://{login}@{LOOPBACK}:{self.amqp_port}/{quote(vhost, safe='')}"

    @property
    def management_url(self) -> str:
        """Of the management plugin, with credentials and without a path."""
        login = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}"
        return f"http://{login}@{LOOPBACK}:{self.management_port}"

    @property
    def is_running(self) -> bool:
        """Whether the process is there; it may still be starting or stopping."""
        return self._broker is not None and self._broker.poll() is None

    @property
    def version(self) -> str:
        """For example "3.10.8". Raises LocalNodeError before the first start."""
        if self._version is None:
            raise LocalNodeError("The version is known once the node has been started: start()")
        return self._version

    @property
    def log(self) -> Path:
        """The file to which the node writes its log, all starts one after the other."""
        return self.base_dir / "log" / "rabbit.log"

    @property
    def log_tail(self) -> str:
        """The last lines of the log since the last start.

        If the node could not start: the last ones before Erlang's own crash reports, which say
        the same again in pages.
        """
        if not self.log.exists():
            return ""
        text = self.log.read_bytes()[self._log_start :].decode(errors="replace")
        if "BOOT FAILED" in text:
            text = CRASH_REPORT.split(text)[0]
        return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])

    def start(self, timeout: float = START_TIMEOUT) -> None:
        """Return once AMQP and management answer. Raises StartError after `timeout` seconds."""
        if self.is_running:
            raise LocalNodeError("The node is running already: stop() it first")
        self._write_files()
        try:
            with self.log.open("ab") as log:
                self._log_start = log.tell()
                # Ours, in the foreground: the daemon that Erlang starts by itself would stay.
                self._epmd = self._spawn(["epmd"], log)
                self._broker = self._spawn([str(self._scripts / "rabbitmq-server")], log)
            self._reaper = end_with_this_process(self._broker, self._epmd)
            self._wait_until_ready(self._broker, timeout)
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
        """End the node at once, as a crash would. Returns when its ports are free again."""
        # The reaper goes first: it must not act on process ids that are somebody else's by then.
        for process in (self._reaper, self._broker, self._epmd):
            if process is not None:
                process.kill()
                process.wait()
                if process.stdin is not None:
                    process.stdin.close()
        self._reaper = self._broker = self._epmd = None

    def restart(self, timeout: float = START_TIMEOUT) -> None:
        """Stop if need be, and start again on the same ports with the same data."""
        self.stop()
        self.start(timeout)

    def rabbitmqctl(self, *arguments: str, timeout: float = 60.0) -> str:
        """What the command printed. Raises CommandError, also after `timeout` seconds."""
        command = [str(self._scripts / "rabbitmqctl"), "--quiet", *arguments]
        name = f"rabbitmqctl {' '.join(arguments[:1])}"
        try:
            done = subprocess.run(
                command,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CommandError(f"{name} did not answer in {timeout:g} s") from error
        if done.returncode:
            raise CommandError(f"{name} failed ({done.returncode}):\n{done.stderr or done.stdout}")
        return done.stdout

    def _write_files(self) -> None:
        self.base_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in ("data", "log", "home"):
            (self.base_dir / name).mkdir(exist_ok=True)
        if self._root is not None:
            link_erlang(self._root, self.base_dir / ERLANG)
        plugins = "rabbitmq_management"
        plugins += "" if self.prometheus_port is None else ",rabbitmq_prometheus"
        self._write("enabled_plugins", f"[{plugins}].\n")
        self._write("definitions.json", json.dumps(self._all_definitions()))
        self._write("advanced.config", self._advanced or "[].\n")
        config = "".join(f"{key} = {value}\n" for key, value in self._config().items())
        self._write("rabbitmq.conf", config)

    def _write(self, name: str, text: str) -> None:
        path = self.base_dir / name
        path.touch(mode=0o600)
        path.write_text(text)

    def _config(self) -> dict[str, str]:
        config = {
            "listeners.tcp.1": f"{LOOPBACK}:{self.amqp_port}",
            "management.tcp.ip": LOOPBACK,
            "management.tcp.port": str(self.management_port),
            "load_definitions": str(self.base_dir / "definitions.json"),
            "vm_memory_high_watermark.absolute": "2GiB",
            "disk_free_limit.absolute": "50MB",
            "raft.wal_max_size_bytes": "64000000",
        }
        if self.prometheus_port is not None:
            config["prometheus.tcp.ip"] = LOOPBACK
            config["prometheus.tcp.port"] = str(self.prometheus_port)
        return config | self._extra_config

    def _all_definitions(self) -> dict[str, Any]:
        """The definitions asked for, and a user who may do everything in each of their vhosts.

        A node that loads definitions makes neither a vhost nor a user of its own.
        """
        given = json.loads(self._definitions.read_text()) if self._definitions else {}
        vhosts = [vhost for vhost in given.get("vhosts", []) if vhost["name"] != "/"]
        vhosts.append({"name": "/"})
        user = {
            "name": self.user,
            "password_hash": _hash(self.password),
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": "administrator",
            "limits": {},
        }
        everything = {"user": self.user, "configure": ".*", "write": ".*", "read": ".*"}
        permissions = [{"vhost": vhost["name"], **everything} for vhost in vhosts]
        return given | {
            "vhosts": vhosts,
            "users": [*given.get("users", []), user],
            "permissions": [*given.get("permissions", []), *permissions],
        }

    def _environment(self) -> dict[str, str]:
        """Everything that the node and its tools are told: no variable of ours reaches them."""
        here = self.base_dir
        loopback_only = "-kernel inet_dist_use_interface {127,0,0,1}"
        path = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
        return {
            "PATH": f"{here / ERLANG / 'bin'}:{path}" if self._root else path,
            "LANG": "C.UTF-8",
            "HOME": str(here / "home"),
            "ERL_CRASH_DUMP_SECONDS": "0",
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "ERL_EPMD_PORT": str(self.epmd_port),
            "RABBITMQ_NODENAME": "switchyard@localhost",
            "RABBITMQ_DIST_PORT": str(self.dist_port),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(here / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(here / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(here / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(here / "data"),
            "RABBITMQ_LOG_BASE": str(here / "log"),
            "RABBITMQ_LOGS": "-",
            # Two schedulers that don't spin while they wait: a small machine has other work.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                f"{loopback_only} +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
            ),
            "RABBITMQ_CTL_ERL_ARGS": loopback_only,
            # The script then becomes the broker instead of a shell that waits for it.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    def _spawn(self, command: list[str], log: BinaryIO) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            env=self._environment(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us; we then stop it in good order
        )

    def _wait_until_ready(self, broker: subprocess.Popen[bytes], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while broker.poll() is None and time.monotonic() < deadline:
            # The AMQP listener is the last thing to come up.
            if self._ask(f"/api/health/checks/port-listener/{self.amqp_port}") is not None:
                overview = self._ask("/api/overview") or {}
                self._version = overview.get("rabbitmq_version")
                return
            time.sleep(0.1)
        if broker.poll() is None:
            what = f"was not ready after {timeout:g} s"
        else:
            what = f"ended with {_exit_of(broker)} while it started"
        raise StartError(
            f"RabbitMQ {what} (ports {self.amqp_port}, {self.management_port}, {self.dist_port}, "
            f"{self.epmd_port}; log: {self.log}). Its last words:\n{self.log_tail}"
        )

    def _ask(self, path: str) -> dict[str, Any] | None:
        """The management plugin's answer; None while there is none or it is a refusal."""
        login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        url = f"http://{LOOPBACK}:{self.management_port}{path}"
        request = urllib.request.Request(url, headers={"Authorization": f"Basic {login}"})
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(request, timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (OSError, ValueError):
            return None


def find_installed(root: Path | None = None) -> Path | None:
    """The directory of RabbitMQ's own scripts on this machine, or under `root`."""
    scripts = root / SCRIPTS.relative_to("/") if root else SCRIPTS
    return scripts if (scripts / "rabbitmq-server").exists() else None


def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens now."""
    for port in random.sample(FREE_PORTS, k=200):
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            return port
    raise LocalNodeError(f"No free port between {FREE_PORTS.start} and {FREE_PORTS.stop}")


def _hash(password: str) -> str:
    """As rabbit_password_hashing_sha256 does: four bytes of salt, then the digest."""
    salt = secrets.token_bytes(4)
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def end_with_this_process(*processes: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """A process that kills the others when this one ends, however it ends.

    It reads from a pipe of which only we hold the other end.
    """
    pids = [str(process.pid) for process in processes]
    return subprocess.Popen(
        ["sh", "-c", 'cat >/dev/null; kill -KILL "$@"', "-", *pids],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _exit_of(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    return signal.Signals(-code).name if code < 0 else f"code {code}"
