"""The servers that a whole run shares, each started when the first test asks for it.

They belong to the process that controls the run, and end with it: a worker that crashes takes
no server with it. Workers ask for them over a socket whose address is in their environment.
"""

import os
import secrets
import shutil
import signal
import tempfile
import threading
from functools import cache
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from switchyard.cli.system.rabbitmq_node import LocalNode
from tests.support.brokers import SMALL_MESSAGES, new_node
from tests.support.commands import CommandForkServer
from tests.support.postgres import PostgresServer

ADDRESS = "SWITCHYARD_TEST_SERVERS"
KEY = "SWITCHYARD_TEST_SERVERS_KEY"
NAMES = (
    "3.10", "4.3", "3.10-small", "4.3-small", "postgres", "postgres-initial", "pgvector", "commands"
)  # fmt: skip

Server = LocalNode | PostgresServer | CommandForkServer

MEMORY = Path("/dev/shm")
MIN_FREE_BYTES = 4 * 1024**3
"""Bytes that must be free in MEMORY to be used."""


def _in_memory() -> Path | None:
    """Return a directory in memory; None if there is none, or too little free space. It saves disk
    writes: a queue with ten priorities has two dozen files, and a thousand tests make ten each."""
    if not MEMORY.is_dir() or os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        return None
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < MIN_FREE_BYTES:
        return None
    return MEMORY


class Servers:
    """Starts servers for this process and its children, until `close`."""

    def __init__(self) -> None:
        self._dir = Path(tempfile.mkdtemp(prefix="switchyard-tests-", dir=_in_memory()))
        self._dir.chmod(0o711)  # PostgreSQL has a user of its own, and a directory in here
        self._locks = {name: threading.Lock() for name in NAMES}
        self._started: dict[str, Server] = {}
        self._failed: dict[str, Exception] = {}
        key = secrets.token_bytes(16)
        self._listener = Listener(str(self._dir / "socket"), "AF_UNIX", authkey=key)
        os.environ[ADDRESS] = str(self._dir / "socket")
        os.environ[KEY] = key.hex()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Kill what was started, and remove all that it wrote."""
        self._listener.close()
        for name, lock in self._locks.items():
            with lock:  # waits for a server that is starting
                self._failed[name] = RuntimeError("the run has ended")
                server = self._started.pop(name, None)
            if isinstance(server, LocalNode):
                server.kill()
            elif server is not None:
                server.stop()
        shutil.rmtree(self._dir, ignore_errors=True)

    def _serve(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                return  # closed
            except Exception:  # a worker went away in the greeting
                continue
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection:
            try:
                answer: Any = self._connection_details(self._get(connection.recv()))
            except Exception as error:  # raised again where it was asked
                answer = error
            connection.send(answer)

    def _get(self, name: str) -> Server:
        with self._locks[name]:
            if name in self._failed:
                raise self._failed[name]
            if name not in self._started:
                try:
                    self._started[name] = self._start(name)
                except Exception as error:
                    self._failed[name] = error
                    raise
            return self._started[name]

    def _connection_details(self, server: Server) -> dict[str, Any]:
        if isinstance(server, CommandForkServer):
            return {"path": server.path}
        if isinstance(server, PostgresServer):
            names = ("base_dir", "port", "password", "with_vectors")
            return {name: getattr(server, name) for name in names}
        ports = ("amqp_port", "management_port", "dist_port", "epmd_port")
        field_names = ("base_dir", "password", *ports)
        return {name: getattr(server, name) for name in field_names} | {"version": server.version}

    def _start(self, name: str) -> Server:
        base_dir = self._dir / name
        base_dir.mkdir()
        server: Server
        if name == "commands":
            return CommandForkServer(base_dir / "socket")
        if name == "postgres-initial":
            server = PostgresServer(base_dir)
            server.start()
            server.make_template()
            server.stop(signal.SIGINT)  # in good order, as its files are copied
        elif name == "postgres":
            initial = self._get("postgres-initial")
            assert isinstance(initial, PostgresServer)
            server = PostgresServer(base_dir, like=initial)
            server.start()
        elif name == "pgvector":
            server = PostgresServer(base_dir, with_vectors=True)
            server.start()
        else:
            version, _, small = name.partition("-")
            server = new_node(version, base_dir, **(SMALL_MESSAGES if small else {}))
            server.start()
        return server


def ask_for(name: str) -> dict[str, Any]:
    """Return how to reach the server of that name, one of NAMES. Raises what its start raised."""
    with Client(os.environ[ADDRESS], authkey=bytes.fromhex(os.environ[KEY])) as connection:
        connection.send(name)
        answer = connection.recv()
    if isinstance(answer, Exception):
        raise answer
    return answer


def shared_node(version: str) -> tuple[LocalNode, str]:
    """Return the run's node of that version, and its full version."""
    details = ask_for(version)
    full_version = details.pop("version")
    # Not started here: it stands for the node that runs already.
    return new_node(version.partition("-")[0], **details), full_version


@cache
def shared_postgres(name: str = "postgres") -> PostgresServer:
    """Return the run's server. Only use its databases; never stop or pause it. "pgvector" has
    pgvector; "postgres-initial" never runs, and its data directory is copied for others."""
    return PostgresServer(**ask_for(name))


def own_postgres(base_dir: Path, **options: Any) -> PostgresServer:
    """Return a server for one test alone, not yet started; `options` as PostgresServer takes
    them."""
    return PostgresServer(base_dir, like=shared_postgres("postgres-initial"), **options)
