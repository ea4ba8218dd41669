"""Three RabbitMQ 4.3 nodes on loopback that form one cluster; `make cluster` runs it by hand.

with LocalCluster(directory) as cluster:
    cluster.nodes[0].kill()
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from switchyard.broker.management.client import ManagementClient
from switchyard.broker.topology.build import build
from switchyard.broker.topology.reconcile import apply
from switchyard.cli.system.free_ports import LOOPBACK, free_port
from switchyard.cli.system.rabbitmq_node import LocalNode, end_with_this_process
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.wings import job_modules
from tests.support.brokers import CONFIG, TestBroker, fresh_vhost, new_node
from tests.support.management import Management

VERSION = "4.3"
_FOR_EACH_NODE = "[begin %s end || N <- %s]."


class ClusterBroker(TestBroker):
    """A vhost whose clients know all nodes; the test's own calls go to the first node."""

    def __init__(self, vhost: str, cluster: LocalCluster) -> None:
        super().__init__(VERSION, "quorum", vhost, cluster.nodes[0])
        self.cluster = cluster

    @property
    def amqp_url(self) -> str:
        return self.cluster.amqp_url(self.vhost)

    @property
    def management_url(self) -> str:
        return self.cluster.management_url

    @cached_property
    def management(self) -> Management:
        return Management(self.node.management_url, self.vhost)


class LocalCluster:
    """Nodes `rabbit1@localhost` and so on, with one user, one cookie and one name server."""

    def __init__(self, directory: Path, size: int = 3) -> None:
        """Prepare the nodes without starting them. Raises MissingError where RabbitMQ 4.3 is not
        installed."""
        epmd_port, cookie = free_port(), secrets.token_hex(20)
        self._password = secrets.token_urlsafe(24)
        names = [f"rabbit{number}" for number in range(1, size + 1)]
        config = CONFIG | {
            "cluster_formation.peer_discovery_backend": "classic_config",
            # So the leaders of queues are not all on the node where they were declared.
            "queue_leader_locator": "balanced",
        }
        for number, name in enumerate(names, 1):
            config[f"cluster_formation.classic_config.nodes.{number}"] = f"{name}@localhost"
        # The settings of new_node, and a short net_ticktime: a dead node is noticed within 5 s.
        self.nodes: list[LocalNode] = [
            new_node(
                VERSION,
                directory / name,
                name=name,
                cookie=cookie,
                epmd=False,
                epmd_port=epmd_port,
                password=self._password,
                extra_config=config | {"net_ticktime": "5"},
            )
            for name in names
        ]
        self._epmd: subprocess.Popen[bytes] | None = None
        self._reaper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Return when all nodes answer and know each other."""
        if self._epmd is None:
            self._epmd = subprocess.Popen(
                ["epmd", "-address", LOOPBACK, "-port", str(self.nodes[0].epmd_port)],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._reaper = end_with_this_process(self._epmd)
        stopped = [node for node in self.nodes if not node.is_running]
        with ThreadPoolExecutor(len(stopped) or 1) as pool:
            list(pool.map(LocalNode.start, stopped))
        asyncio.run(self._until_all_know_each_other())

    def kill(self) -> None:
        """End all nodes at once, as a power cut would, and the name server."""
        for node in self.nodes:
            node.kill()
        for process in (self._reaper, self._epmd):
            if process is not None:
                process.kill()
                process.wait()
                if process.stdin is not None:
                    process.stdin.close()
        self._epmd = self._reaper = None

    # --- addresses ------------------------------------------------------------------------------

    def amqp_url(self, vhost: str = "/", *, nodes: Iterable[LocalNode] | None = None) -> str:
        """Return the address, with credentials; of all nodes unless told which."""
        hosts = ",".join(f"{LOOPBACK}:{node.amqp_port}" for node in nodes or self.nodes)
        return f"amqp://{self._login}@{hosts}/{quote(vhost, safe='')}"

    @property
    def management_url(self) -> str:
        hosts = ",".join(f"{LOOPBACK}:{node.management_port}" for node in self.nodes)
        return f"http://{self._login}@{hosts}"

    @property
    def _login(self) -> str:
        return f"{self.nodes[0].user}:{quote(self._password, safe='')}"

    @contextmanager
    def vhost(self) -> Iterator[ClusterBroker]:
        """Make a virtual host for one test, on a cluster whose nodes all run."""
        with fresh_vhost(self.nodes[0], VERSION, "quorum") as broker:
            yield ClusterBroker(broker.vhost, self)

    # --- faults of nodes and network ------------------------------------------------------------

    @contextmanager
    def frozen(self, node: LocalNode) -> Iterator[None]:
        """Freeze a node while the context is open: its connections stay, and it sends nothing."""
        os.kill(node.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(node.pid, signal.SIGCONT)

    def cut_off(self, node: LocalNode) -> None:
        """Cut a node off from the other nodes; clients still reach all of them."""
        # With another cookie, Erlang nodes refuse each other's connections.
        node.rabbitmqctl(
            "eval",
            _FOR_EACH_NODE
            % ("erlang:set_cookie(N, cut_off), erlang:disconnect_node(N)", "nodes()"),
        )

    def join_again(self, node: LocalNode) -> None:
        """Undo `cut_off`. Return when all nodes know each other."""
        others = ", ".join(f"'{each.name}@localhost'" for each in self.nodes if each is not node)
        # In processes of the node, because rabbitmqctl would wait for each of them: a node to which
        # others are connecting, too, may answer only after the handshake's time-out.
        reconnect = (
            "erlang:set_cookie(N, erlang:get_cookie()), "
            "spawn(fun() -> net_kernel:connect_node(N) end)"
        )
        node.rabbitmqctl("eval", _FOR_EACH_NODE % (reconnect, f"[{others}]"))
        asyncio.run(self._until_all_know_each_other())

    async def _until_all_know_each_other(self) -> None:
        deadline = time.monotonic() + 60
        async with ManagementClient(self.management_url) as client:
            while True:
                running = [each for each in await client.get("/nodes") if each.get("running")]
                if len(running) == len(self.nodes):
                    return
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{len(running)} of {len(self.nodes)} nodes are there")
                await asyncio.sleep(0.2)


async def _apply(cluster: LocalCluster) -> None:
    topology = build("quorum", Registry.load(dict.fromkeys(job_modules())).routes)
    async with ManagementClient(cluster.management_url) as client:
        await apply(client, topology)


def main(arguments: list[str] | None = None) -> None:
    """Run a cluster until Ctrl-C, with the topology of the quorum profile."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--nodes", type=int, default=3, help="number of nodes")
    parser.add_argument("--directory", type=Path, help="where their data stays; else it is removed")
    options: Any = parser.parse_args(arguments)
    for each in (signal.SIGINT, signal.SIGTERM):  # a shell's background job ignores the first
        signal.signal(each, signal.default_int_handler)
    with TemporaryDirectory(prefix="switchyard-cluster-") as scratch:
        try:
            with LocalCluster(options.directory or Path(scratch), options.nodes) as cluster:
                asyncio.run(_apply(cluster))
                print(f"export JOBS_AMQP_URL={cluster.amqp_url()}")
                print(f"export JOBS_MANAGEMENT_URL={cluster.management_url}")
                print("export JOBS_PROFILE=quorum", flush=True)
                for node in cluster.nodes:
                    print(f"# {node.name}: {node.control}", flush=True)
                signal.pause()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
