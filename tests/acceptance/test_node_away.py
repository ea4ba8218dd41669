"""Commands with several nodes in JOBS_AMQP_URL, of which one is away."""

import pytest

from switchyard.cli.system.free_ports import free_port
from tests.acceptance.conftest import CommandLine


@pytest.mark.parametrize("command", [("topology", "apply"), ("system", "show")], ids=" ".join)
def test_a_command_that_succeeds_with_the_other_node_says_nothing_of_it(
    jobctl: CommandLine, command: tuple[str, ...]
) -> None:
    head, _, vhost = jobctl.environment["JOBS_AMQP_URL"].rpartition("/")
    # Nodes are tried in random order: of 15 that are away, one is tried before it, most likely.
    away = ",".join(f"127.0.0.1:{free_port()}" for _ in range(15))
    done = jobctl.run(*command, JOBS_AMQP_URL=f"{head},{away}/{vhost}")
    assert (done.returncode, done.stderr) == (0, "")
