"""Names for those who hold something in the ledger: jobs, leases, operations."""

from __future__ import annotations

import os
import socket


def new_instance_id() -> str:
    """Unique for every call: host and process, for people to read, and a random part."""
    return f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"
