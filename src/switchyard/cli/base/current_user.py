"""Who runs a command, for the record."""

from __future__ import annotations


def user() -> str:
    """`name@host`."""
    import getpass
    import socket

    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # no such user in this container
        name = "unknown"
    return f"{name}@{socket.gethostname()}"
