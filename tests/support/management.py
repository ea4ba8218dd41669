"""A client of a test broker's management HTTP API."""

from typing import Any
from urllib.parse import quote

import httpx

from tests.support.eventually import MAX_WAIT, eventually


class Management:
    """Queries one vhost. Statistics are up to a second old: wait for them."""

    def __init__(self, url: str, vhost: str) -> None:
        self.url = url
        self.vhost = vhost

    async def get(self, path: str) -> Any:
        """Return the answer to `GET /api/…`; `{vhost}` in the path is filled in."""
        return (await self._send("GET", path)).json()

    async def put(self, path: str, body: Any) -> None:
        await self._send("PUT", path, body)

    async def post(self, path: str, body: Any) -> Any:
        answer = await self._send("POST", path, body)
        return answer.json() if answer.content else None

    async def delete(self, path: str) -> None:
        await self._send("DELETE", path)

    async def queue(self, name: str) -> dict[str, Any]:
        """Return all that the broker tells about a queue."""
        return await self.get(f"/queues/{{vhost}}/{quote(name, safe='')}")

    async def depth(self, name: str) -> int:
        """Return messages in the queue, ready and unacknowledged."""
        return (await self.queue(name)).get("messages", 0)

    async def wait_until_depth(self, name: str, depth: int, timeout: float = MAX_WAIT) -> None:
        """Return when the queue holds exactly `depth` messages, ready and unacknowledged."""
        await self.wait_for(name, timeout, messages=depth)

    async def wait_for(self, name: str, timeout: float = MAX_WAIT, **fields: Any) -> dict[str, Any]:
        """Return when the queue has these fields, as in `messages_unacknowledged=3`."""
        values: dict[str, Any] = {}

        async def matches() -> bool:
            queue = await self.queue(name)
            values.update({field: queue.get(field) for field in fields})
            return values == fields

        try:
            await eventually(matches, timeout)
        except AssertionError:
            raise AssertionError(
                f"queue {name} has {values} and not {fields} after {timeout:g} s"
            ) from None
        return await self.queue(name)

    async def close_connections(self) -> int:
        """Close every connection to this vhost, and return their number."""
        names = await self.connections()
        for name in names:
            await self.delete(f"/connections/{quote(name, safe='')}")
        return len(names)

    async def connections(self) -> list[str]:
        """Return the names of the connections to this vhost."""
        return [each["name"] for each in await self.get("/vhosts/{vhost}/connections")]

    async def _send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        url = f"{self.url}/api{path.replace('{vhost}', quote(self.vhost, safe=''))}"
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=30) as client:
            answer = await client.request(method, url, json=body)
        if answer.is_error:
            raise AssertionError(f"{method} {path}: {answer.status_code}: {answer.text[:300]}")
        return answer
