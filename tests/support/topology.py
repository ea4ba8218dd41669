"""A topology on a test's broker, made in one request.

`jobctl topology apply` takes a request for each part, which costs a test a third of a second;
tests/integration/test_topology_apply.py holds that both make the same.
"""

from switchyard.broker.management.model import Topology
from switchyard.broker.topology.definitions import render
from tests.support.management import Management


async def declare_topology(management: Management, topology: Topology) -> None:
    """Make everything of it; what is there already stays as it is."""
    parts = render(topology, vhost=management.vhost)
    del parts["vhosts"]  # it is there, and so are its permissions
    await management.post("/definitions/{vhost}", parts)
