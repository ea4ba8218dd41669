"""A PostgreSQL server that archives its log, and one that recovers from a copy and that log."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.postgres import PostgresServer
from tests.support.servers import own_postgres

ARCHIVE = (
    "cmp -s %p {wal}/%f || {{ test ! -f {wal}/%f && cp %p {wal}/tmp && mv {wal}/tmp {wal}/%f; }}"
)
"""The archive command of docs/backup.md."""


def archiving_server(directory: Path) -> PostgresServer:
    """Make a server whose log is archived in `directory`/wal; nothing is started yet."""
    wal = directory / "wal"
    options = {
        "wal_level": "replica",
        "archive_mode": "on",
        "archive_command": ARCHIVE.format(wal=wal),
    }
    server = own_postgres(directory / "server", extra_config=options)
    for folder in (wal, server.base_dir):
        folder.mkdir()
    if server.system_user:
        shutil.chown(wal, server.system_user, server.system_user)
    return server


class RecoveredServer(PostgresServer):
    """A server whose data directory is made by `make`, and which recovers at its first start."""

    def __init__(self, base_dir: Path, source: PostgresServer, make: Callable[[Path], None]):
        super().__init__(base_dir, password=source.password)
        base_dir.mkdir()
        self._make = make

    def recover(self, timeout: float = 60.0) -> None:
        """Start, and return when the recovery has ended and the server accepts writes."""
        self.start()
        deadline = time.monotonic() + timeout
        while self.execute("SELECT pg_is_in_recovery()").strip() != "f":
            if time.monotonic() > deadline:
                raise RuntimeError((self.base_dir / "postgres.log").read_text()[-2000:])
            time.sleep(0.05)

    def _initialise(self, data: Path) -> None:
        self._make(data)
        if self.system_user:
            for each in (self.base_dir, data, *data.rglob("*")):
                shutil.chown(each, self.system_user, self.system_user)
