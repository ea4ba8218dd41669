"""Commands with several nodes in JOBS_AMQP_URL, of which only one can be reached."""

import pytest

from switchyard.cli.system.free_ports import free_port
from tests.acceptance.conftest import CommandLine


@pytest.mark.parametrize("command", [("topology", "apply"), ("system", "show")], ids=" ".join)
def test_a_command_that_succeeds_on_one_node_says_nothing_of_the_others(
    jobctl: CommandLine, command: tuple[str, ...]
) -> None:
    address, _, vhost = jobctl.environment["JOBS_AMQP_URL"].rpartition("/")
    # Nodes are tried in random order: with 15 others, one of them is most likely tried first.
    unreachable = ",".join(f"127.0.0.1:{free_port()}" for _ in range(15))
    completed = jobctl.run(*command, JOBS_AMQP_URL=f"{address},{unreachable}/{vhost}")
    assert (completed.returncode, completed.stderr) == (0, "")
