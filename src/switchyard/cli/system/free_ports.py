"""Find ports of this machine that are not in use."""

import random
import socket

from switchyard.cli.base.errors import CommandFailed

LOOPBACK = "127.0.0.1"
# Below the range from which Linux takes the ports of outgoing connections.
FREE_PORTS = range(20_000, 32_000)


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nobody listens now."""
    for port in random.sample(FREE_PORTS, k=200):
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            return port
    raise CommandFailed(f"No free port between {FREE_PORTS.start} and {FREE_PORTS.stop}")


def is_free(port: int) -> bool:
    """Tell whether a server could listen on that port of 127.0.0.1 now."""
    with socket.socket() as probe:
        # As the node itself does: a connection that lingers does not hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
