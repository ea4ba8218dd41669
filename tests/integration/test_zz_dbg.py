import asyncio
from tests.integration.test_dead_letters import bury, index_waiting, open_system, DEAD_LOG_QUEUE
import pytest
@pytest.mark.parametrize("n", range(6))
async def test_it(broker43_quorum, sqlite_url, n) -> None:
    broker=broker43_quorum
    async with open_system(broker, sqlite_url) as system:
        ids = [f"job-{number:03}" for number in range(450)]
        await asyncio.gather(*(bury(system, job_id) for job_id in ids))
        k = await index_waiting(system.settings, system.ledger, system.registry)
        r=[]
        for i in range(8):
            r.append(await system.ready(DEAD_LOG_QUEUE)); await asyncio.sleep(0.2)
        print("COUNT", k, r, await index_waiting(system.settings, system.ledger, system.registry))
