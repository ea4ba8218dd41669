"""The HTTP API served by uvicorn on loopback, in a thread or in a process.

async with serving(system.settings) as api:
    answer = await api.client.post("/jobs", json={"routing_key": "hot.noop"})
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai

from switchyard.api.server import ApiServer
from switchyard.services.common.settings import Settings
from tests.support.commands import ROOT, Running, commands
from tests.support.eventually import MAX_WAIT, eventually


@dataclass
class RunningApi:
    """A server in this process."""

    server: ApiServer
    thread: threading.Thread
    client: httpx.AsyncClient

    @property
    def url(self) -> str:
        return str(self.client.base_url)

    @property
    def state(self) -> Any:
        """The state that requests share; it belongs to the server's own event loop."""
        return self.server.app.state.api

    async def stop(self) -> None:
        """Stop the server as SIGTERM would."""
        self.server.stop()
        await asyncio.to_thread(self.thread.join, MAX_WAIT)
        assert not self.thread.is_alive(), "the API did not stop"


@asynccontextmanager
async def serving(settings: Settings, **changes: Any) -> AsyncIterator[RunningApi]:
    """Serve with these settings; `changes` as in `api_keys=SecretStr(…)`."""
    server = ApiServer(settings.model_copy(update={"api_port": 0, **changes}))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()

    def started() -> bool:
        assert thread.is_alive(), "the API did not start"
        return server.started

    await eventually(started, what="the start of the API")
    port = server.servers[0].sockets[0].getsockname()[1]
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False, verify=False
    ) as client:
        api = RunningApi(server, thread, client)
        try:
            yield api
        finally:
            await api.stop()


async def until_connected(api: RunningApi) -> None:
    """Wait until the API has opened its connections to the broker."""
    broker = api.state.broker
    await eventually(lambda: broker.publisher.is_connected, what="the publisher's connection")
    await eventually(lambda: broker.pressure.is_known, what="the depths of the lanes")


def client_of(api: RunningApi, key: str = "none") -> openai.AsyncOpenAI:
    """Return OpenAI's own client for the API, without retries."""
    return openai.AsyncOpenAI(
        base_url=f"{api.url}/v1",
        api_key=key,
        max_retries=0,
        timeout=60,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
    )


def problem(answer: httpx.Response, status: int, name: str) -> dict[str, Any]:
    """Return the problem in an answer. Fails if it is no problem of that kind and status."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert (body["type"], body["status"]) == (f"/problems/{name}", status), answer.text
    assert body["request_id"] == answer.headers["x-request-id"]
    return body


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the environment variables of a process of the system."""
    assert settings.amqp_url is not None
    assert settings.database_url is not None
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("JOBS_")},
        "JOBS_AMQP_URL": settings.amqp_url.get_secret_value(),
        "JOBS_DATABASE_URL": settings.database_url.get_secret_value(),
        "JOBS_MODULES": ",".join(settings.modules),
        "JOBS_DATA_DIR": str(settings.data_dir),
        "JOBS_LOG_FORMAT": "json",
    }


@dataclass
class ApiProcess:
    """`jobctl api` in a process of its own."""

    process: Running | subprocess.Popen[bytes]
    log: Path
    url: str

    def kill(self) -> None:
        """Kill the process, which can do nothing more."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)


@asynccontextmanager
async def api_process(
    settings: Settings, log: Path, *options: str, code: str | None = None, **environment: str
) -> AsyncIterator[ApiProcess]:
    """Run `jobctl api`; with `code`, a program of the test that runs a changed one."""
    port = _free_port()
    arguments = ["api", "--port", str(port), *options]
    variables = environment_of(settings) | environment
    process: Running | subprocess.Popen[bytes]
    with log.open("wb") as output:
        if code is None:
            process = commands().start(arguments, env=variables, cwd=ROOT, output=output.fileno())
        else:
            process = subprocess.Popen(
                [sys.executable, "-c", code, *arguments],
                env=variables,
                stdout=output,
                stderr=output,
            )
    url = f"http://127.0.0.1:{port}"
    with process:
        try:
            async with httpx.AsyncClient(trust_env=False, verify=False) as client:

                async def answers() -> bool:
                    assert process.poll() is None, log.read_text()
                    try:
                        return (await client.get(f"{url}/health/live")).is_success
                    except httpx.TransportError:
                        return False

                await eventually(answers, what="the start of `jobctl api`")
            yield ApiProcess(process, log, url)
        finally:
            process.kill()
            process.wait(10)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
