"""The brokers that tests run against, one node for each version."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import httpx

from switchyard.cli.system.node import LocalNode, find_installed
from tests.support.management import Management
from tests.support.missing import MissingError

Profile = Literal["classic", "quorum"]

# A dead letter that a full queue refused is tried again after three seconds instead of 180, and
# figures are a second old at most, instead of five.
ADVANCED = (
    "[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 3000}, "
    "{quorum_tick_interval, 250}]}]."
)
CONFIG = {"collect_statistics_interval": "250"} | {
    f"management.sample_retention_policies.{kind}.minute": "1"
    for kind in ("global", "basic", "detailed")
}


@dataclass(frozen=True)
class TestBroker:
    """A vhost of its own on a broker that other tests may be using at the same time."""

    __test__ = False  # a name for pytest to leave alone

    version: str
    profile: Profile
    vhost: str
    node: LocalNode
    """To ask (`rabbitmqctl`, URLs), never to stop: for that, take the fixture `own_node`."""

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
    """Where that version ("3.10", "4.3") is installed: None for the machine's own package.

    Raises MissingError where it is not.
    """
    if any(Path("/usr/lib/rabbitmq/lib").glob(f"rabbitmq_server-{version}*")):
        return None
    default = Path.home() / ".cache" / "switchyard"
    root = Path(os.environ.get("SWITCHYARD_CACHE") or default) / f"rabbitmq-{version}"
    if find_installed(root) is None:
        raise MissingError(f"RabbitMQ {version} is not installed: make test-deps, as root")
    return root


def new_node(version: str, base_dir: Path, **options: Any) -> LocalNode:
    """A node with the tests' settings, not yet started. Raises MissingError."""
    settings = {"advanced": ADVANCED, "extra_config": CONFIG} | options
    return LocalNode(base_dir=base_dir, root=root_of(version), **settings)


@contextmanager
def fresh_vhost(node: LocalNode, version: str, profile: Profile) -> Iterator[TestBroker]:
    """A vhost for one test; all that is in it goes with it."""
    vhost = f"test-{secrets.token_hex(6)}"
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    with httpx.Client(
        base_url=f"{node.management_url}/api", trust_env=False, verify=False, timeout=30
    ) as http:
        http.put(f"/vhosts/{vhost}").raise_for_status()
        http.put(f"/permissions/{vhost}/{node.user}", json=everything).raise_for_status()
        try:
            yield TestBroker(version, profile, vhost, node)
        finally:
            http.delete(f"/vhosts/{vhost}").raise_for_status()
