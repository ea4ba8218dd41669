"""The stage: a private broker and PostgreSQL, made for the run and gone after it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import httpx

from switchyard.broker.addresses import with_vhost
from switchyard.broker.management.client import ManagementClient
from switchyard.broker.management.model import Policy
from switchyard.broker.topology.build import build
from switchyard.broker.topology.reconcile import apply
from switchyard.cli.system.rabbitmq_node import LocalNode
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import upgrade
from tests.support.postgres import PostgresServer


@dataclass(frozen=True)
class Stage:
    """Addresses of what was started."""

    directory: Path
    amqp_url: str
    management_url: str
    broker_version: str
    postgres: PostgresServer

    def vhost(self, name: str) -> str:
        """The AMQP address of a new, empty virtual host."""
        with httpx.Client(base_url=self.management_url) as client:
            client.delete(f"/api/vhosts/{quote(name, safe='')}")
            client.put(f"/api/vhosts/{quote(name, safe='')}").raise_for_status()
        return with_vhost(self.amqp_url, name)

    def clear(self) -> None:
        """Remove the virtual hosts, with the messages that were left in them: enough of these
        would make the broker block publishers."""
        with httpx.Client(base_url=self.management_url, timeout=60) as client:
            for each in client.get("/api/vhosts").raise_for_status().json():
                if each["name"] != "/":
                    client.delete(f"/api/vhosts/{quote(each['name'], safe='')}")

    def folder(self, name: str) -> Path:
        """A new one, whose name begins with that. Who finds storage or index of another system is
        refused, so no two may share one."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.directory))

    def switchyard(
        self,
        name: str,
        ledger: str = "sqlite",
        max_length: int = 1_000_000,
        modules: Sequence[str] = ("benchmarks.contenders.with_switchyard",),
    ) -> dict[str, str]:
        """A new system: a virtual host with the topology, a ledger, and a folder for files; the
        settings to reach them.

        The lanes are made long, also for requests of models, whose queues are full much earlier:
        these runs fill them further than the product would.
        """
        folder = self.folder(name)
        vhost = folder.name
        amqp_url = self.vhost(vhost)
        registry = Registry.load(modules)

        async def prepare() -> None:
            async with ManagementClient(self.management_url, vhost) as client:
                await apply(client, build("classic", registry.routes))
                for policy in await client.policies():
                    if "max-length" in policy.definition:
                        definition = {**policy.definition, "max-length": max_length}
                        await client.put_policy(
                            Policy(policy.name, policy.pattern, definition, policy.priority)
                        )

        asyncio.run(prepare())
        url = f"sqlite+aiosqlite:///{folder / 'ledger.db'}"
        if ledger == "postgresql":
            url = self.postgres.create_database()
        asyncio.run(upgrade(url))
        return {
            "JOBS_AMQP_URL": amqp_url,
            "JOBS_MANAGEMENT_URL": self.management_url,
            "JOBS_DATABASE_URL": url,
            "JOBS_DATA_DIR": str(folder),
            "JOBS_LLM_SLOW_AT": str(max_length),
            "JOBS_LLM_FULL_AT": str(max_length),
        }


@contextmanager
def stage() -> Iterator[Stage]:
    """Start broker and database; stop them at the end. Raises MissingError or NotInstalledError
    when they are not on this machine (`make test-deps`)."""
    with tempfile.TemporaryDirectory(prefix="switchyard-bench-") as directory:
        base = Path(directory)
        base.chmod(0o755)
        node = LocalNode(base_dir=base / "broker")
        node.start()
        (base / "postgres").mkdir(mode=0o755)
        postgres = PostgresServer(base / "postgres")
        try:
            postgres.start()
            yield Stage(base, node.amqp_url, node.management_url, node.version, postgres)
        finally:
            postgres.stop()
            node.stop()
