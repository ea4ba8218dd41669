"""Whether the queues that a command needs are on the broker."""

from __future__ import annotations

from collections.abc import Iterable

from switchyard.cli.base.errors import CommandFailed


async def require_queues(url: str, names: Iterable[str]) -> None:
    """Raises CommandFailed naming the queues that are not there, BrokerUnavailable."""
    from switchyard.broker.wire.depths import ask_queues

    found = await ask_queues(url, names)
    missing = [name for name, waiting in found.items() if waiting is None]
    if missing:
        raise CommandFailed(
            f"the broker has no queue {', '.join(missing)}: run `jobctl topology apply`"
        )
