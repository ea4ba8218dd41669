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
@pytest.mark.parametrize("chunk,n", [(333,1),(333,2),(5000,1),(5000,2)])
async def test_ordr(broker43_quorum, sqlite_url, chunk, n, monkeypatch):
    monkeypatch.setattr(broker_dead, "CHUNK", chunk)
    async with open_system(broker43_quorum, sqlite_url) as system:
        everything = [f"job-{number:04}" for number in range(2500)]
        await bury_many(system, everything)
        for _ in range(n): assert await ids(system) == everything
        out = everything[3::5]
        tally = await redrive(system, LetterFilter(ids=frozenset(out)))
        left=[e for e in everything if e not in set(out)]
        for again in range(2):
            got = await ids(system)
            runs=[]; prev=None
            nums=[int(g[4:]) for g in got]
            start=nums[0]; last=nums[0]
            for k in nums[1:]:
                if k < last or k-last>2: runs.append((start,last)); start=k
                last=k
            runs.append((start,last)); print("RUNS", chunk, n, tally.scanned, runs)
            print("SAME", set(got)==set(left), len(got))
broker_dead = broker.dead_queue
