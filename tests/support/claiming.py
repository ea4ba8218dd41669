"""A process that claims jobs of a ledger, and prints the numbers of those whose claims it got.

Its arguments: the ledger's address, the name of a worker, and how many jobs to claim.
"""

import asyncio
import sys

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.results import Claimed
from tests.support.made import claim


async def claim_all(url: str, worker_id: str, jobs: int) -> list[int]:
    """Return those of the jobs `job-0`, `job-1` … that this worker was the first to claim."""
    async with await Ledger.open(url) as ledger:

        async def try_claim(n: int) -> bool:
            request = claim(f"job-{n}", f"{worker_id}-{n}", worker_id=worker_id)
            return isinstance(await ledger.jobs.claim(request), Claimed)

        results = await asyncio.gather(*(try_claim(n) for n in range(jobs)))
    return [n for n, is_own in enumerate(results) if is_own]


def main() -> None:
    url, worker_id, jobs = sys.argv[1:]
    print(*asyncio.run(claim_all(url, worker_id, int(jobs))))
