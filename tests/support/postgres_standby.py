"""A PostgreSQL server that follows another one, which waits for it before it confirms a commit."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from switchyard.cli.system.free_ports import LOOPBACK
from tests.support.missing import MissingError, skip_or_fail
from tests.support.postgres import PostgresServer
from tests.support.servers import own_postgres

Pair = tuple[PostgresServer, "StandbyServer"]


class StandbyServer(PostgresServer):
    """A copy of a running primary, made at its first start. `promote` makes it the primary."""

    def __init__(self, base_dir: Path, primary: PostgresServer) -> None:
        super().__init__(base_dir, password=primary.password, with_vectors=primary.with_vectors)
        self._primary = primary

    def follow(self) -> None:
        """Start, and make the primary wait for this standby at every commit from now on."""
        self.start()
        self._primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self._primary.execute("SELECT pg_reload_conf()")
        deadline = time.monotonic() + 20
        query = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        while self._primary.execute(query).strip() != "1":
            if time.monotonic() > deadline:
                raise RuntimeError("the standby does not follow")
            time.sleep(0.05)

    def promote(self) -> None:
        """Accept writes from now on."""
        self.execute("SELECT pg_promote()")

    def _initialise(self, data: Path) -> None:
        self._install()
        if self.system_user:
            shutil.chown(self.base_dir, self.system_user, self.system_user)
        subprocess.run(
            [
                *(self._binaries / "pg_basebackup", "-D", data, "-R", "-X", "stream", "-N"),
                *("-c", "fast", "-h", LOOPBACK, "-p", str(self._primary.port), "-U", "test"),
            ],
            env=os.environ | {"PGPASSWORD": self.password},
            user=self.system_user,
            group=self.system_user,
            extra_groups=[] if self.system_user else None,
            cwd="/",
            check=True,
            capture_output=True,
        )


@contextmanager
def running_pair(*, with_vectors: bool = False) -> Iterator[Pair]:
    """Run a primary and its synchronous standby, with pgvector if wanted."""
    with TemporaryDirectory(prefix="switchyard-pair-") as directory:
        Path(directory).chmod(0o755)
        try:
            base_dir = Path(directory) / "primary"
            if with_vectors:
                primary = PostgresServer(base_dir, with_vectors=True)
            else:
                primary = own_postgres(base_dir)
        except MissingError as error:
            skip_or_fail(str(error))
        primary.base_dir.mkdir()
        primary.start()
        standby = StandbyServer(Path(directory) / "standby", primary)
        standby.base_dir.mkdir()
        try:
            standby.follow()
            yield primary, standby
        finally:
            primary.stop()
            standby.stop()


def url_of(pair: Pair) -> str:
    """Return the address of both servers, in SQLAlchemy's form."""
    primary, standby = pair
    hosts = f"{LOOPBACK}:{primary.port},{LOOPBACK}:{standby.port}"
    return f"postgresql+asyncpg://test:{primary.password}@{hosts}/postgres"
