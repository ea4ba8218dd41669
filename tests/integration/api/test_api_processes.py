"""`jobctl api --processes`: several processes behind one port."""

import asyncio
import os
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.api_server import ApiProcess, api_process, environment_of
from tests.support.commands import jobctl
from tests.support.eventually import eventually
from tests.support.metrics import Scrape
from tests.support.system import System


def children_of(pid: int) -> set[int]:
    return {int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def sockets_of(pid: int) -> Path:
    """The directory of the sockets on which a process tells its metrics to the others."""
    own = {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()}
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if f"socket:[{fields[6]}]" in own and fields[-1].endswith(".sock"):
            return Path(fields[-1]).parent
    raise AssertionError(f"process {pid} has no socket")


async def once(url: str, path: str) -> httpx.Response:
    """Ask on a connection of its own, which any of the processes may take."""
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as client:
        return await client.get(path)


async def scrape(api: ApiProcess) -> Scrape:
    return Scrape((await once(api.url, "/metrics")).text)


async def processes_in(api: ApiProcess) -> dict[str, float]:
    """When each of them started, by its number, as one scrape tells it."""
    return {
        sample.labels["process"]: sample.value
        for sample in (await scrape(api)).samples
        if sample.name == "process_start_time_seconds"
    }


@pytest.fixture
async def api(system: System, tmp_path: Path) -> AsyncIterator[ApiProcess]:
    async with api_process(system.settings, tmp_path / "log", "--processes", "2") as started:

        async def both_tell() -> bool:
            return set(await processes_in(started)) == {"1", "2"}

        await eventually(both_tell)
        yield started


async def test_a_scrape_tells_what_each_process_has_counted(
    api: ApiProcess, system: System
) -> None:
    job = {"routing_key": "hot.noop", "payload": {"n": 1}}
    async with httpx.AsyncClient(base_url=api.url, trust_env=False, timeout=20) as client:
        published = [(await client.post("/jobs", json=job)).json()["job_id"] for _ in range(3)]
    for job_id in published:  # whichever process is asked
        assert (await once(api.url, f"/jobs/{job_id}")).json()["state"] == "queued"
    text = (await once(api.url, "/metrics")).text
    found = Scrape(text)
    assert found.value("switchyard_publishes_total", outcome="accepted") == 3
    of_system = [each for each in found.samples if each.name == "switchyard_queue_ready"]
    assert of_system
    assert not any("process" in each.labels for each in of_system)
    types = Counter(line for line in text.splitlines() if line.startswith("# TYPE"))
    assert max(types.values()) == 1


async def test_a_killed_process_is_replaced_while_the_others_answer(api: ApiProcess) -> None:
    before = await processes_in(api)
    killed, other = sorted(children_of(api.process.pid))
    os.kill(killed, signal.SIGKILL)

    async def is_replaced() -> bool:
        assert (await once(api.url, "/health/live")).is_success
        now = await processes_in(api)
        return len(now) == 2 and now != before

    await eventually(is_replaced)
    assert other in children_of(api.process.pid)
    assert killed not in children_of(api.process.pid)
    assert '"exit_code": -9' in api.log.read_text()


async def test_sigterm_ends_them_all_in_good_order(api: ApiProcess) -> None:
    pids = children_of(api.process.pid)
    sockets = sockets_of(min(pids))
    async with (
        httpx.AsyncClient(base_url=api.url, trust_env=False, timeout=20) as client,
        client.stream("GET", "/events") as answer,
    ):
        lines = answer.aiter_lines()
        await anext(lines)
        api.process.send_signal(signal.SIGTERM)
        assert [line async for line in lines if line] == []
    assert await asyncio.to_thread(api.process.wait, 20) == 0
    assert not any(is_running(pid) for pid in pids)
    assert not sockets.exists()
    assert "Traceback" not in api.log.read_text()


async def test_none_outlives_the_first_process(api: ApiProcess) -> None:
    pids = children_of(api.process.pid)
    sockets = sockets_of(min(pids))
    api.kill()
    await eventually(lambda: not any(is_running(pid) for pid in pids))
    assert not sockets.exists()


async def test_what_would_fail_every_process_ends_them_all(system: System) -> None:
    environment = environment_of(system.settings) | {"JOBS_API_KEYS": "short"}
    ended = await jobctl("api", "--port", "0", "--processes", "3", **environment)
    assert ended.returncode == 1
    assert "JOBS_API_KEYS" in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_a_port_that_is_taken_is_told_once(system: System) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        environment = environment_of(system.settings)
        ended = await jobctl("api", "--port", port, "--processes", "2", **environment)
    assert ended.returncode == 1
    assert ended.stderr.count(f"127.0.0.1:{port}") == 1


async def test_without_a_broker_there_is_one_process(sqlite_url: str) -> None:
    ended = await jobctl("api", "--processes", "2", JOBS_DATABASE_URL=sqlite_url)
    assert ended.returncode == 2
    assert "JOBS_AMQP_URL" in ended.stderr
