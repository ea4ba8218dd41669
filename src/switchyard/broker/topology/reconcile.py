"""Make a live broker as a topology declares it.

Nothing is ever deleted but a binding that would bring jobs to the wrong worker, and the `.unbound`
exchange of a queue whose bindings are there. The type and the arguments of an existing queue or
exchange can't be changed in place: such a difference is reported and left alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.broker.errors import TopologyMismatch
from switchyard.broker.lanes import DEAD_EXCHANGE, UNBOUND_SUFFIX
from switchyard.broker.management.client import ManagementClient
from switchyard.broker.management.model import Binding, Exchange, Policy, Queue, Topology
from switchyard.broker.topology.differences import Deviation, Difference, diff


@dataclass(frozen=True, slots=True)
class ApplyReport:
    """Changes that `apply` made, one line each, and the differences that remain."""

    done: tuple[str, ...]
    left: tuple[Difference, ...]

    @property
    def blocked(self) -> tuple[Difference, ...]:
        """Differences that can't be changed in place."""
        return tuple(difference for difference in self.left if not difference.is_extra)

    @property
    def extras(self) -> tuple[Difference, ...]:
        """Objects in our namespace that are not declared."""
        return tuple(difference for difference in self.left if difference.is_extra)

    def require_success(self) -> None:
        """Raise TopologyMismatch if anything could not be changed; the text names all of it."""
        if self.blocked:
            texts = "; ".join(difference.text for difference in self.blocked)
            raise TopologyMismatch(f"the broker can't be changed in place: {texts}")


async def apply(client: ManagementClient, topology: Topology) -> ApplyReport:
    """Change the broker into what is declared, as far as that can be done in place.

    Safe to run again, at the same time from several places, and with jobs under way: the
    dead-letter queues are made before anything can dead-letter; a queue's policy is made before the
    queue; nothing of ours is published to a new queue until its bindings are made
    (`lanes.UNBOUND_SUFFIX`); and a key gets its new binding before it loses the old one. Raises
    ManagementError when the broker can't be reached or refuses; changes made until then stay, and
    another run makes the rest.
    """
    differences = diff(topology, await client.fetch())
    if any(_drops_dead_letters(difference) for difference in differences):
        # A lane policy would send expired jobs into an exchange that drops them.
        return ApplyReport(done=(), left=tuple(differences))
    bound = topology.bound_queues
    new = [each.name for each in differences if _is_missing_queue(each) and each.name in bound]
    for name in new:
        await client.put_exchange(_unbound_exchange(name))
    done = [await _change(client, difference) for difference in differences if difference.fixable]
    for name in new:
        await client.delete_exchange(name + UNBOUND_SUFFIX)
    left = differences if not done else diff(topology, await client.fetch())
    return ApplyReport(done=tuple(done), left=tuple(left))


async def _change(client: ManagementClient, difference: Difference) -> str:
    match difference.subject:
        case Exchange(name=name) if difference.problem is Deviation.UNFINISHED:
            await client.delete_exchange(name)
            return f"finished queue {difference.name}: its bindings are there"
        case Binding() as binding if difference.problem is Deviation.STALE:
            await client.delete_binding(binding)
            return f"removed binding {difference.name}: it brought jobs to the wrong worker"
        case Binding() as binding:
            await client.put_binding(binding)
        case Exchange() as exchange:
            await client.put_exchange(exchange)
        case Queue() as queue:
            await client.put_queue(queue)
        case Policy() as policy:
            await client.put_policy(policy)
    verb = "changed" if difference.problem is Deviation.POLICY else "made"
    return f"{verb} {difference.kind} {difference.name}"


def _is_missing_queue(difference: Difference) -> bool:
    return difference.problem is Deviation.MISSING and isinstance(difference.subject, Queue)


def _unbound_exchange(queue: str) -> Exchange:
    """Return the exchange that marks a queue as not yet bound. Durable: a broker that is restarted
    meanwhile has the queue, and perhaps not all of its bindings."""
    return Exchange(queue + UNBOUND_SUFFIX, "fanout")


def _drops_dead_letters(difference: Difference) -> bool:
    return difference.name == DEAD_EXCHANGE and difference.problem is Deviation.TYPE
