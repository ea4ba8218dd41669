"""The subclass of uvicorn's server that serves the API and the metrics of a process."""

import threading
import time

import httpx
import uvicorn

from switchyard.api.waiting_server import WaitingServer
from tests.support.eventually import eventually


class TickCounter(WaitingServer):
    ticks = 0

    async def on_tick(self, counter: int) -> bool:
        self.ticks += 1
        return await super().on_tick(counter)


async def answer_no_content(scope: object, receive: object, send: object) -> None:
    await send({"type": "http.response.start", "status": 204})  # type: ignore[operator]
    await send({"type": "http.response.body"})  # type: ignore[operator]


async def test_a_server_ticks_once_a_second_and_stops_at_once_from_another_thread() -> None:
    server = TickCounter(uvicorn.Config(answer_no_content, port=0, lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    await eventually(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with httpx.AsyncClient(trust_env=False) as client:
        first = await client.get(f"http://127.0.0.1:{port}/")
        await eventually(lambda: server.ticks == 2)
        second = await client.get(f"http://127.0.0.1:{port}/")
    assert first.headers["date"] != second.headers["date"]
    began = time.monotonic()
    server.stop()
    thread.join(10)
    assert time.monotonic() - began < 0.9  # less than the second until the next tick
    assert server.ticks == 3
    server.stop()  # a second call has no effect
