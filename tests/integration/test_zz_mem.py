import asyncio, resource, sys, time
sys.path.insert(0, "/work/main")
from tests.integration.test_redrive import *
async def run(broker, url):
    async with open_system(broker, url) as system:
        N=30000
        cert = DeathCertificate(Reason.EXHAUSTED, "backfill.noop", error_type="RuntimeError", message="x"*200, traceback="y"*2000)
        async def one(i):
            m = JobMessage(job_id=f"job-{i:05}", job_type="noop", payload={})
            await system.wire.send(DEAD_EXCHANGE, "backfill.noop", envelope_of(m, cert.headers()))
        for s in range(0,N,500):
            await asyncio.gather(*(one(i) for i in range(s,s+500)))
        r0=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        t=time.time()
        tally = await redrive(system, LetterFilter(ids=frozenset({"job-00000"})))
        print("MEM", r0//1024, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss//1024, "MB", tally.scanned, tally.done, round(time.time()-t,2))
        tally = await redrive(system, LetterFilter(), limit=1)
        print("MEM", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss//1024, "MB", tally.scanned, tally.done)
async def test_mem310(broker310, sqlite_url): await run(broker310, sqlite_url)
async def test_mem43(broker43_quorum, sqlite_url): await run(broker43_quorum, sqlite_url)
import broker.dead_queue
import pytest
@pytest.mark.parametrize("chunk", [50, 7, 333])
async def test_order(broker, sqlite_url, chunk, monkeypatch):
    monkeypatch.setattr(broker_dead, "CHUNK", chunk)
    async with open_system(broker, sqlite_url) as system:
        everything = [f"job-{number:03}" for number in range(2500)]
        await bury_many(system, everything)
        for _ in range(3):
            assert await ids(system) == everything
        out = everything[3::5]
        tally = await redrive(system, LetterFilter(ids=frozenset(out)))
        assert tally.scanned == 2500
        left=[e for e in everything if e not in set(out)]
        assert await ids(system) == left
        assert await ids(system) == left
broker_dead = broker.dead_queue
