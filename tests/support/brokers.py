"""The brokers that tests run against, one node for each version."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from switchyard.broker.management.model import Topology
from switchyard.cli.system.rabbitmq_node import LocalNode
from tests.support.foreign_root import BrokenRootError, ForeignRootNode, scripts_under
from tests.support.management import Management
from tests.support.missing import MissingError
from tests.support.topology import declare_topology
from tests.support.vhosts import Vhosts

Profile = Literal["classic", "quorum"]

# A dead letter that a full queue refused is sent again after three seconds instead of 180, and
# statistics are at most one second old, instead of five.
ADVANCED = (
    "[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 3000}, "
    "{quorum_tick_interval, 250}]}]."
)
CONFIG = {"collect_statistics_interval": "250"} | {
    f"management.sample_retention_policies.{kind}.minute": "1"
    for kind in ("global", "basic", "detailed")
}
SMALL_LIMIT = 64 * 1024
"""Largest message in bytes that the nodes named "…-small" accept."""
SMALL_MESSAGES = {"extra_config": CONFIG | {"max_message_size": str(SMALL_LIMIT)}}


class TestBroker:
    """A vhost of its own on a broker that other tests may be using at the same time.

    Without a name, it takes a vhost from `vhosts` at its first use: one that has the topology
    already if the first call is `declare`, otherwise an empty one.
    """

    __test__ = False  # a name for pytest to leave alone

    def __init__(
        self,
        version: str,
        profile: Profile,
        vhost: str | None,
        node: LocalNode,
        vhosts: Vhosts | None = None,
    ) -> None:
        self.version = version
        self.profile: Profile = profile
        self.node = node
        """For URLs and `rabbitmqctl`. Never stop it: other tests use it. See the fixture
        `own_node`."""
        self._vhost = vhost
        self._vhosts = vhosts

    @property
    def vhost(self) -> str:
        if self._vhost is None:
            assert self._vhosts is not None
            self._vhost = self._vhosts.make()
        return self._vhost

    async def declare(self, topology: Topology) -> None:
        """Declare all parts of a topology; existing ones stay unchanged."""
        if self._vhost is None and self._vhosts is not None:
            self._vhost = self._vhosts.with_topology(topology)
        else:
            await declare_topology(self.management, topology)

    def close(self) -> None:
        """Give the vhost back."""
        if self._vhost is not None and self._vhosts is not None:
            self._vhosts.give_back(self._vhost)

    @property
    def amqp_url(self) -> str:
        """With credentials, for the test's own vhost."""
        return self.node.amqp_url_of(self.vhost)

    @property
    def management_url(self) -> str:
        """With credentials, without a path."""
        return self.node.management_url

    @cached_property
    def management(self) -> Management:
        return Management(self.management_url, self.vhost)


def root_of(version: str) -> Path | None:
    """Return where that version ("3.10", "4.3") is installed; None for the machine's own package.

    Raises MissingError where it is not.
    """
    if any(Path("/usr/lib/rabbitmq/lib").glob(f"rabbitmq_server-{version}*")):
        return None
    default = Path.home() / ".cache" / "switchyard"
    root = Path(os.environ.get("SWITCHYARD_CACHE") or default) / f"rabbitmq-{version}"
    try:
        scripts_under(root)
    except BrokenRootError as error:
        message = f"RabbitMQ {version} is not installed: make test-deps, as root"
        raise MissingError(message) from error
    return root


def new_node(version: str, base_dir: Path, **options: Any) -> LocalNode:
    """Return a node with the tests' settings, not yet started. Raises MissingError."""
    settings = {"advanced": ADVANCED, "extra_config": CONFIG} | options
    root = root_of(version)
    if root is None:
        return LocalNode(base_dir=base_dir, **settings)
    return ForeignRootNode(base_dir=base_dir, root=root, **settings)


@contextmanager
def fresh_vhost(node: LocalNode, version: str, profile: Profile) -> Iterator[TestBroker]:
    """Make a vhost on a node that is not the run's, and remove it at the end."""
    vhosts = Vhosts(node)
    broker = TestBroker(version, profile, None, node, vhosts)
    try:
        yield broker
    finally:
        broker.close()
        vhosts.close()
