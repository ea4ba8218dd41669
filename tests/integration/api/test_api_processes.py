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
    """Return the directory of the sockets on which processes exchange their metrics."""
    own = {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()}
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if f"socket:[{fields[6]}]" in own and fields[-1].endswith(".sock"):
            return Path(fields[-1]).parent
    raise AssertionError(f"process {pid} has no socket")


async def get_once(url: str, path: str) -> httpx.Response:
    """Send a GET on a connection of its own, which any of the processes may take."""
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as client:
        return await client.get(path)


async def scrape(api: ApiProcess) -> Scrape:
    return Scrape((await get_once(api.url, "/metrics")).text)


async def start_times(api: ApiProcess) -> dict[str, float]:
    """Return when each process started, by its number, according to one scrape."""
    return {
        sample.labels["process"]: sample.value
        for sample in (await scrape(api)).samples
        if sample.name == "process_start_time_seconds"
    }


@pytest.fixture
async def api(system: System, tmp_path: Path) -> AsyncIterator[ApiProcess]:
    async with api_process(system.settings, tmp_path / "log", "--processes", "2") as started:

        async def both_are_scraped() -> bool:
            return set(await start_times(started)) == {"1", "2"}

        await eventually(both_are_scraped)
        yield started


async def test_a_scrape_counts_the_requests_of_every_process(
    api: ApiProcess, system: System
) -> None:
    job = {"routing_key": "hot.noop", "payload": {"n": 1}}
    async with httpx.AsyncClient(base_url=api.url, trust_env=False, timeout=20) as client:
        published = [(await client.post("/jobs", json=job)).json()["job_id"] for _ in range(3)]
    for job_id in published:  # whichever process answers
        assert (await get_once(api.url, f"/jobs/{job_id}")).json()["state"] == "queued"
    text = (await get_once(api.url, "/metrics")).text
    metrics = Scrape(text)
    assert metrics.value("switchyard_publishes_total", outcome="accepted") == 3
    queue_samples = [each for each in metrics.samples if each.name == "switchyard_queue_ready"]
    assert queue_samples
    assert not any("process" in each.labels for each in queue_samples)
    types = Counter(line for line in text.splitlines() if line.startswith("# TYPE"))
    assert max(types.values()) == 1


async def test_a_killed_process_is_replaced_while_the_others_answer(api: ApiProcess) -> None:
    before = await start_times(api)
    killed, other = sorted(children_of(api.process.pid))
    os.kill(killed, signal.SIGKILL)

    async def is_replaced() -> bool:
        assert (await get_once(api.url, "/health/live")).is_success
        now = await start_times(api)
        return len(now) == 2 and now != before

    await eventually(is_replaced)
    assert other in children_of(api.process.pid)
    assert killed not in children_of(api.process.pid)
    assert '"exit_code": -9' in api.log.read_text()


async def test_sigterm_ends_all_processes_in_good_order(api: ApiProcess) -> None:
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


async def test_no_process_outlives_the_first(api: ApiProcess) -> None:
    pids = children_of(api.process.pid)
    sockets = sockets_of(min(pids))
    api.kill()
    await eventually(lambda: not any(is_running(pid) for pid in pids))
    assert not sockets.exists()


async def test_invalid_settings_end_all_processes(system: System) -> None:
    environment = environment_of(system.settings) | {"JOBS_API_KEYS": "short"}
    result = await jobctl("api", "--port", "0", "--processes", "3", **environment)
    assert result.returncode == 1
    assert "JOBS_API_KEYS" in result.stderr
    assert "Traceback" not in result.stderr


async def test_a_port_that_is_taken_is_reported_once(system: System) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        environment = environment_of(system.settings)
        result = await jobctl("api", "--port", port, "--processes", "2", **environment)
    assert result.returncode == 1
    assert result.stderr.count(f"127.0.0.1:{port}") == 1


async def test_without_a_broker_there_is_one_process(sqlite_url: str) -> None:
    result = await jobctl("api", "--processes", "2", JOBS_DATABASE_URL=sqlite_url)
    assert result.returncode == 2
    assert "JOBS_AMQP_URL" in result.stderr
