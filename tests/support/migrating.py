"""Changes a test system's queues to another profile, in a process that may be killed.

    python -m tests.support.migrating PROFILE

Prints each queue that is done.
"""

import asyncio
import sys
from itertools import groupby

from switchyard.broker.management.client import ManagementClient
from switchyard.broker.settings import Profile
from switchyard.broker.topology.build import build
from switchyard.broker.topology.migrate import MigratedQueue, Migration, exclusive_migration, plan
from switchyard.broker.wire.connection import connected, underlying
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import Registry
from tests.support.system import lanes_with

SETTLED = 0.8
"""Seconds: the tests' brokers renew their figures four times a second."""


async def migrate(settings: Settings, to: Profile, *, wait: float = 30.0) -> list[MigratedQueue]:
    """Do it, as `jobctl topology migrate` does."""
    routes = Registry.load(settings.modules).routes
    wanted = build(to, routes, lanes=lanes_with(), retry_delays=settings.retry_delays)
    ended: list[MigratedQueue] = []
    async with (
        ManagementClient(settings.require_management_url(), settings.vhost) as client,
        connected(settings.require_amqp_url(), "migration") as connection,
        exclusive_migration(underlying(connection)),
    ):
        migration = Migration(
            client, underlying(connection), wanted, drain_timeout=wait, settle_seconds=SETTLED
        )
        steps = await plan(client, wanted)
        for _, of_lane in groupby(steps, key=lambda step: step.lane):
            async for each in migration.migrate_lane(list(of_lane)):
                ended.append(each)
                print(each.name, flush=True)
    return ended


if __name__ == "__main__":
    asyncio.run(migrate(Settings(), "quorum" if sys.argv[1] == "quorum" else "classic"))
