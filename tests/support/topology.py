"""A topology on a test's broker, made in one request.

`jobctl topology apply` makes a request for each part, which would cost a test a third of a second;
tests/integration/test_topology_apply.py checks that both make the same topology.
"""

from switchyard.broker.management.model import Topology
from switchyard.broker.topology.definitions import render
from tests.support.management import Management


async def declare_topology(management: Management, topology: Topology) -> None:
    """Declare all parts of a topology; existing ones stay unchanged."""
    parts = render(topology, vhost=management.vhost)
    del parts["vhosts"]  # the vhost and its permissions exist
    await management.post("/definitions/{vhost}", parts)
