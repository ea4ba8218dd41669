"""Migrate a test system's queues to another profile, in a process that may be killed.

    python -m tests.support.migrating PROFILE

Prints the name of each migrated queue.
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

SETTLE_SECONDS = 0.8
"""Seconds to wait for statistics, which the tests' brokers renew four times a second."""


async def migrate(
    settings: Settings, profile: Profile, *, wait: float = 30.0
) -> list[MigratedQueue]:
    """Migrate all queues, as `jobctl topology migrate` does."""
    routes = Registry.load(settings.modules).routes
    target = build(profile, routes, lanes=lanes_with(), retry_delays=settings.retry_delays)
    migrated: list[MigratedQueue] = []
    async with (
        ManagementClient(settings.require_management_url(), settings.vhost) as client,
        connected(settings.require_amqp_url(), "migration") as connection,
        exclusive_migration(underlying(connection)),
    ):
        migration = Migration(
            client,
            underlying(connection),
            target,
            drain_timeout=wait,
            settle_seconds=SETTLE_SECONDS,
        )
        steps = await plan(client, target)
        for _, of_lane in groupby(steps, key=lambda step: step.lane):
            async for each in migration.migrate_lane(list(of_lane)):
                migrated.append(each)
                print(each.name, flush=True)
    return migrated


if __name__ == "__main__":
    asyncio.run(migrate(Settings(), "quorum" if sys.argv[1] == "quorum" else "classic"))
