"""`/limits`, by the client."""

from switchyard.api.client import AsyncClient
from switchyard.services.engine.records.limits import LimitSize, PermitDemand, PermitRequest
from tests.support.api_server import RunningApi
from tests.support.system import System


async def test_limits_are_shown_with_what_runs_and_what_waits(
    system: System, api: RunningApi
) -> None:
    for number, name in enumerate(["openai", "openai", "free"]):
        await system.ledger.limits.take_permits(
            PermitRequest(
                hold=f"hold-{number}",
                holder="worker",
                needs=(PermitDemand(name, "acme", LimitSize(concurrency=1, per_minute=10)),),
                job_id=f"job-{number}",
                redrives=0,
                attempts=0,
                queue="hot.llm",
                body=b"{}",
                levels=(300.0,),
                expires_at=4_000_000_000.0,
                life=60.0,
                claimed=False,
            )
        )
    async with AsyncClient(api.url) as client:
        found = {each.name: each for each in (await client.limits()).limits}
        assert set(found) == {"free", "openai"}
        openai = found["openai"]
        assert (openai.key, openai.concurrency, openai.per_minute) == ("acme", 1, 10)
        assert openai.tokens_per_minute is None
        assert (openai.in_use, openai.last_minute, openai.waiting) == (1, 1, 1)
        assert openai.next_room is None
        waited = (await client.limits(waiting=True)).limits
        assert [each.name for each in waited] == ["openai"]
