"""`/limits` and `/usage`, by the client."""

from switchyard.api.client import AsyncClient
from switchyard.services.common.files.storage import Storage
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
                rank=0,
                body=b"{}",
                levels=(300.0,),
                expires_at=4_000_000_000.0,
                life=60.0,
                claimed=False,
            )
        )
    async with AsyncClient(api.url) as client:
        limits = {each.name: each for each in (await client.limits()).limits}
        assert set(limits) == {"free", "openai"}
        openai = limits["openai"]
        assert (openai.key, openai.concurrency, openai.per_minute) == ("acme", 1, 10)
        assert openai.tokens_per_minute is None
        assert (openai.in_use, openai.last_minute, openai.waiting) == (1, 1, 1)
        assert openai.next_room is None
        waiting = (await client.limits(waiting=True)).limits
        assert [each.name for each in waiting] == ["openai"]


async def test_usage_shows_the_size_of_ledger_files_and_queues(
    system: System, api: RunningApi
) -> None:
    await Storage(system.settings.files_url).put_async("uploads/doc-1/original", b"x" * 1000)
    await system.publish("hot.noop", {"n": 1})
    async with AsyncClient(api.url) as client:
        usage = await client.usage()
    assert usage.missing == {}
    assert usage.ledger is not None
    [jobs] = [each for each in usage.ledger.tables if each.name == "jobs"]
    assert (jobs.rows, jobs.rows_of_last_day) == (1, 1)
    uploads = {each.kind: each for each in usage.files or []}["uploads"]
    assert (uploads.files, uploads.bytes, uploads.bytes_of_last_day) == (1, 1000, 1000)
    assert "hot.llm" in {each.name for each in usage.queues or []}
