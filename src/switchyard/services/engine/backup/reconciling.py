"""Compare a restored ledger with its broker, job by job, and repair the differences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from switchyard.broker.dead.scan import scanning
from switchyard.broker.errors import BrokerUnavailable
from switchyard.broker.wire.depths import query_queues
from switchyard.services.common.errors import ConflictError
from switchyard.services.common.settings import Settings
from switchyard.services.engine.dead.indexing import ReindexResult, reindex
from switchyard.services.engine.identity.broker import mark_broker
from switchyard.services.engine.identity.storage_identity import claim_places
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.states import FINISHED

BATCH_SIZE = 1_000
"""Jobs that are compared or published again in one transaction."""


class QueuesInUse(ConflictError):
    """Workers are consuming the queues, so they can't be compared."""


@dataclass(frozen=True, slots=True)
class QueueDifferences:
    """Differences between ledger and broker on jobs that wait in queues."""

    on_broker: int
    """Messages in the lanes and in the queues for retries."""
    unknown: int
    """Jobs among them without a record, each once: it gets one when a worker claims it."""
    ended: int
    """Jobs among them that have ended according to the ledger, each once: they are skipped."""
    unreadable: int
    """Messages that are no jobs: they become dead letters when a worker gets them."""
    lost: tuple[str, ...]
    """Jobs that wait according to the ledger and that the broker lacks. Those that ran after
    the backup run once more."""


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """Result of a reconciliation."""

    republished: int
    """Jobs that the scheduler will publish again."""
    letters: ReindexResult


async def compare_queues(
    settings: Settings, ledger: Ledger, queues: Sequence[str]
) -> QueueDifferences:
    """Compare the messages of these queues with the ledger, without changing anything. Reads all
    messages.

    Raises QueuesInUse, BrokerUnavailable, LedgerUnavailable.
    """
    url = settings.require_amqp_url()
    sizes = await query_queues(url, queues)
    if busy := sorted(name for name, size in sizes.items() if size and size.consumers):
        raise QueuesInUse(f"workers take jobs from {', '.join(busy)}: stop them first")
    if missing := sorted(name for name, size in sizes.items() if size is None):
        raise BrokerUnavailable(
            f"the broker has no queue {', '.join(missing)}: run `jobctl topology apply`",
            maybe_accepted=False,
        )
    on_broker = unreadable = 0
    ids_on_broker: set[str] = set()
    for queue in queues:
        async with scanning(url, queue) as scan:
            async for queued in scan.letters():
                on_broker += 1
                if queued.message is None:
                    unreadable += 1
                else:
                    ids_on_broker.add(queued.message.job_id)
    unknown = ended = 0
    for ids in _batches(sorted(ids_on_broker)):
        states = await ledger.job_reads.states(ids)
        unknown += len(ids) - len(states)
        ended += sum(state in FINISHED for state in states.values())
    lost = [each async for each in ledger.job_reads.ids_in_queues() if each not in ids_on_broker]
    return QueueDifferences(on_broker, unknown, ended, unreadable, tuple(lost))


async def reconcile(
    settings: Settings, ledger: Ledger, registry: Registry, differences: QueueDifferences
) -> ReconcileResult:
    """Mark broker, files and index as the ledger's, rebuild the index of dead letters, and have the
    jobs published that the broker lacks. Safe to repeat. Waits while a redrive or purge scans the
    dead letters.

    Raises BrokerUnavailable, LedgerError, MarkUnreadable.
    """
    await mark_broker(settings, ledger, take=True)
    await claim_places(settings, ledger, take=True)
    letters = await reindex(settings, ledger, registry)
    republished = 0
    for ids in _batches(differences.lost):
        republished += await ledger.jobs.requeue(ids)
    return ReconcileResult(republished, letters)


def _batches(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    return (ids[start : start + BATCH_SIZE] for start in range(0, len(ids), BATCH_SIZE))
