"""Change the type of queues that are in use: from one profile to the other, one by one.

A queue's type and arguments can't change, so each queue is drained into a stand-in, deleted,
declared anew, and filled again, while publishers and workers go on:

1. `jobs.migrate.<queue>` is made: a stand-in queue that takes over the bindings, and an exchange
   that leads to it.
2. A policy keeps retried jobs, which come by the default exchange, out of the old queue for now;
   the broker tries to deliver them again 180 s later.
3. Waiting messages are moved to the stand-in. Consumers get nothing more and end their jobs; the
   old queue is then empty, and is deleted.
4. The new queue is declared. The stand-in's messages are moved there; then the bindings; then the
   messages that came to the stand-in meanwhile.

The progress is recorded on the broker alone: after a kill at any point, the next run goes on from
there. If jobs do not end in time, step 4 fills the old queue instead, which undoes the migration.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from aiormq import Connection
from aiormq.exceptions import ChannelLockedResource

from switchyard.broker.errors import BrokerError
from switchyard.broker.lanes import DEAD_LOG_QUEUE, DEAD_QUEUE, STAND_IN_PREFIX, lane_of
from switchyard.broker.management.client import ManagementClient
from switchyard.broker.management.model import Binding, Exchange, Policy, Queue, Topology
from switchyard.broker.topology.queue_shovel import QueueShovel, running_shovel
from switchyard.broker.wire.channel import open_channel
from switchyard.broker.wire.failures import raising_broker_unavailable

LOCK_QUEUE = "jobs.migrate"
MIGRATION_POLICY_PRIORITY = 100
"""Higher than that of the lanes' own policies."""
SETTLE_SECONDS = 11.0
"""Seconds for which the broker must report an empty queue before it counts as empty: its figures
are five seconds old at most, and the management API's as much again."""
DEPTH_POLL_INTERVAL = 0.2
DRAIN_TIMEOUT = 600.0
"""Seconds that running jobs have to end, by default."""


class MigrationRefused(BrokerError):
    """The migration can't be begun, or can't go on. The text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class QueueMigration:
    """One queue that is to be remade, or whose remaking was broken off."""

    queue: Queue
    """The queue as it will be after the migration."""
    live_type: str | None
    """Its type now; None where the queue is missing, deleted by an earlier run that was killed."""
    messages: int = 0
    """Messages in it and in its stand-in, as of the last seconds."""
    begun: bool = False
    """Whether an earlier run has begun to remake the queue."""

    @property
    def name(self) -> str:
        return self.queue.name

    @property
    def lane(self) -> str:
        """The queue's lane; the queue's own name for a dead-letter queue."""
        return self.name if self.name in (DEAD_QUEUE, DEAD_LOG_QUEUE) else lane_of(self.name)


@dataclass(frozen=True, slots=True)
class MigratedQueue:
    """How the migration of one queue has ended."""

    name: str
    moved: int
    done: bool
    """False: jobs were still running when the time was over; the queue is as it was before."""


async def plan(client: ManagementClient, target: Topology) -> list[QueueMigration]:
    """Return the queues that are not as declared, lane by lane, the least urgent first; nothing is
    changed.

    Retry queues are the same in both profiles. Raises MigrationRefused where the broker is too old.
    """
    if target.profile == "quorum":
        version = await client.version()
        numbers = [int(each) for each in re.findall(r"\d+", version)[:2]]
        if numbers < [4, 3]:
            raise MigrationRefused(
                f"the quorum profile needs RabbitMQ 4.3 or later, this is {version}"
            )
    live = await client.fetch()
    live_queues = {each.name: each for each in live.queues}
    migrations = []
    for queue in target.queues:
        live_queue = live_queues.get(queue.name)
        stand_in = live_queues.get(STAND_IN_PREFIX + queue.name)
        if live_queue is None and stand_in is None:
            continue  # `apply` makes it
        is_right = live_queue is not None and _is_declared_alike(live_queue.declared, queue)
        if is_right and stand_in is None and not _has_migration_policy(live.policies, queue.name):
            continue
        messages = sum(each.messages for each in (live_queue, stand_in) if each is not None)
        live_type = live_queue.declared.type if live_queue is not None else None
        migrations.append(QueueMigration(queue, live_type, messages, stand_in is not None))
    return sorted(migrations, key=lambda each: (each.lane == "hot", each.lane, each.name))


def _is_declared_alike(queue: Queue, other: Queue) -> bool:
    return queue.declare_arguments == other.declare_arguments


def _has_migration_policy(policies: Iterable[Policy], name: str) -> bool:
    """Tell whether an earlier run has left its policy for the queue on the broker."""
    return any(each.name == STAND_IN_PREFIX + name for each in policies)


@dataclass(frozen=True, slots=True)
class Migration:
    """Remakes queues; one at a time on a virtual host, see `exclusive_migration`."""

    client: ManagementClient
    connection: Connection
    target: Topology
    drain_timeout: float = DRAIN_TIMEOUT
    settle_seconds: float = SETTLE_SECONDS

    async def migrate_lane(
        self, migrations: Iterable[QueueMigration]
    ) -> AsyncIterator[MigratedQueue]:
        """Remake the queues of one lane, and then its policy. Raises ManagementError or
        BrokerUnavailable: run it again; NeverTaken or MigrationRefused: change first what the text
        names."""
        complete, migrations = True, list(migrations)
        names = [each.name for each in migrations]
        for migration in migrations:
            ended = await self._remake(migration)
            complete = complete and ended.done
            yield ended
        if complete:
            for policy in {each.name: each for each in map(self._policy_of, names)}.values():
                await self.client.put_policy(policy)
            for name in names:
                await self.client.delete_policy(STAND_IN_PREFIX + name)

    async def _remake(self, migration: QueueMigration) -> MigratedQueue:
        name, moved = migration.name, 0
        done = True
        live = {each.name: each.declared for each in await self.client.queues()}
        if name in live and not _is_declared_alike(live[name], migration.queue):
            moved, done = await self._drain(migration.queue)
            if done:
                await self.client.delete_queue(name, if_empty=live[name].type == "classic")
                live.pop(name)
        if done:
            # Before the queue: a quorum queue must never be under a classic lane's policy, by which
            # it would drop jobs when it is full.
            await self._put_migration_policy(name, self._policy_of(name).definition)
        else:
            await self.client.delete_policy(STAND_IN_PREFIX + name)
        if name not in live:
            await self.client.put_queue(migration.queue)
        await self._fill(name)
        return MigratedQueue(name, moved, done)

    async def _drain(self, queue: Queue) -> tuple[int, bool]:
        """Do steps 1 to 3. Return how many messages were moved, and whether nothing is left."""
        name, stand_in = queue.name, STAND_IN_PREFIX + queue.name
        # Refused, if at all, before anything is changed.
        is_dead = name in (DEAD_QUEUE, DEAD_LOG_QUEUE)
        refusing = None if is_dead else await self._refusing_definition(name)
        await self.client.put_queue(replace(queue, name=stand_in))
        await self.client.put_exchange(Exchange(stand_in, "fanout"))
        await self.client.put_binding(Binding(stand_in, stand_in))
        await self.client.delete_binding(Binding(stand_in, name))
        await self._rebind(name, stand_in)
        if refusing is not None:
            await self._put_migration_policy(name, refusing)  # the broker holds back retries
        async with running_shovel(self.connection, queue=name, exchange=stand_in) as shovel:
            try:
                async with asyncio.timeout(self.drain_timeout):
                    await self._wait_until_empty(name, shovel)
            except TimeoutError:
                return shovel.moved, False
            return shovel.moved, True

    async def _refusing_definition(self, name: str) -> dict[str, Any]:
        """Return the definition of the queue's policy, changed so that the queue refuses every
        message. Raises MigrationRefused where it would drop messages instead."""
        live = await self.client.fetch()
        policies = {each.name: dict(each.definition) for each in live.policies}
        in_force = next((each.policy for each in live.queues if each.name == name), None)
        definition = policies.get(in_force or "", {})
        # `max-length` 0 only where overflow is already `reject-publish`: a queue that drops its
        # head would be emptied, even if one policy sets both (measured on 4.3.6).
        if not str(definition.get("overflow", "")).startswith("reject-publish"):
            raise MigrationRefused(
                f"{name} is under the policy {in_force!r}, which does not refuse what is too much: "
                "see `jobctl topology diff`, and change that first"
            )
        return definition | {"max-length": 0, "overflow": "reject-publish"}

    async def _wait_until_empty(self, name: str, shovel: QueueShovel) -> None:
        clock = asyncio.get_running_loop().time
        since = clock()
        while clock() - since < self.settle_seconds:
            shovel.raise_if_stopped()
            if await self.client.queue_messages(name) != 0:
                since = clock()
            await asyncio.sleep(DEPTH_POLL_INTERVAL)

    async def _fill(self, name: str) -> None:
        """Do step 4: fill the queue from its stand-in, the new queue or, to undo, the old one."""
        stand_in = STAND_IN_PREFIX + name
        if stand_in not in {each.name for each in await self.client.queues()}:
            return
        await self.client.put_exchange(Exchange(stand_in, "fanout"))
        await self.client.delete_binding(Binding(stand_in, stand_in))
        await self.client.put_binding(Binding(stand_in, name))
        async with running_shovel(self.connection, queue=stand_in, exchange=stand_in) as shovel:
            # The bindings move only after that: new messages come in behind the old ones.
            await shovel.wait_until_empty()
            await self._rebind(stand_in, name)
            await shovel.wait_until_empty()
        await self.client.delete_queue(stand_in)
        await self.client.delete_exchange(stand_in)

    async def _rebind(self, old_name: str, new_name: str) -> None:
        """Move one queue's bindings to another: each is added to the new one before the old one
        loses it."""
        own = [
            each
            for each in await self.client.bindings()
            if each.destination == old_name
            and each.destination_type == "queue"
            and not each.source.startswith(STAND_IN_PREFIX)
        ]
        for each in own:
            await self.client.put_binding(replace(each, destination=new_name))
        for each in own:
            await self.client.delete_binding(each)

    def _policy_of(self, name: str) -> Policy:
        policy = self.target.policy_of(name)
        if policy is None:
            raise MigrationRefused(f"no policy is declared for {name}")
        return policy

    async def _put_migration_policy(self, name: str, definition: Mapping[str, Any]) -> None:
        pattern = f"^{re.escape(name)}$"
        await self.client.put_policy(
            Policy(STAND_IN_PREFIX + name, pattern, definition, priority=MIGRATION_POLICY_PRIORITY)
        )


@asynccontextmanager
async def exclusive_migration(connection: Connection) -> AsyncIterator[None]:
    """Hold the virtual host's migration lock. Raises MigrationRefused while another process has
    it."""
    with raising_broker_unavailable("can't ask whether another migration is under way"):
        channel = await open_channel(connection, confirms=False)
        try:
            await channel.queue_declare(LOCK_QUEUE, exclusive=True)
        except ChannelLockedResource as error:
            raise MigrationRefused(
                "another migration is under way: wait for it, or end that process"
            ) from error
    try:
        yield
    finally:
        with raising_broker_unavailable("can't say that the migration is over"):
            await channel.queue_delete(LOCK_QUEUE)
