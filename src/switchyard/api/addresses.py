"""Which addresses are this machine alone: asked by the service and by its client."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether that address, or name, is this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
