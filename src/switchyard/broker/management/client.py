"""A client for the part of RabbitMQ's management HTTP API that a topology needs.

Credentials go into the `Authorization` header alone: never into an error's text or a log line.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from switchyard.broker.closeable import AsyncCloseable
from switchyard.broker.errors import ManagementError, ManagementForbidden
from switchyard.broker.management.http import ManagementHttp
from switchyard.broker.management.live_topology import (
    LiveQueue,
    LiveTopology,
    binding_from,
    exchange_from,
    policy_from,
    queue_from,
)
from switchyard.broker.management.model import Binding, Exchange, Policy, Queue

REQUEST_TIMEOUT_SECONDS = 10.0
# Without statistics the API answers from the broker's metadata: complete and current. With them
# it shows a new queue's policy only seconds later, and may answer from a cache.
_WITHOUT_STATISTICS = {"disable_stats": "true", "enable_queue_totals": "true"}
_TAGS = {"Not monitor user": "monitoring", "Not administrator user": "administrator"}
"""The tag that a user lacks, by the broker's text."""

_DECLARE_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6, 0.0)
"""Seconds to wait after each try to declare a queue that another process is just declaring."""


class ManagementClient(AsyncCloseable):
    """Reads and declares exchanges, queues, bindings and policies of one virtual host.

    `url` is the address of the API with user and password, `http://user:password@host:15672`; of a
    cluster, with several hosts, of which the first that can be reached is used. No answer takes
    more than three times `timeout` seconds, or has more bytes than `http.MAX_ANSWER_BYTES`.
    Use it as an async context manager, or call `close`. Every method raises ManagementError,
    whose text says what to do.
    """

    def __init__(
        self,
        url: str,
        vhost: str = "/",
        *,
        timeout: float = REQUEST_TIMEOUT_SECONDS,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Raises ManagementError for an invalid address. Nothing is requested yet."""
        self._vhost = vhost
        self._http = ManagementHttp(url, timeout=timeout, transport=transport)

    async def close(self) -> None:
        await self._http.close()

    async def fetch(self) -> LiveTopology:
        """Return everything that a topology is compared with."""
        return LiveTopology(
            exchanges=await self.exchanges(),
            queues=await self.queues(),
            bindings=await self.bindings(),
            policies=await self.policies(),
            operator_policies=await self.operator_policies(),
        )

    async def version(self) -> str:
        """Return the broker's version, such as `4.3.6`."""
        overview = await self.get("/overview")
        return str(overview["rabbitmq_version"])

    async def time(self) -> float:
        """Return the broker's own time, to the second; seconds since the epoch."""
        response = await self._http.request("GET", "/whoami")
        self._check(response)
        try:
            return parsedate_to_datetime(response.headers["date"]).timestamp()
        except (KeyError, ValueError) as error:
            raise ManagementError(f"{self._http.base} does not tell its time") from error

    async def exchanges(self) -> tuple[Exchange, ...]:
        return tuple(exchange_from(item) for item in await self.get(self._path("exchanges")))

    async def queues(self) -> tuple[LiveQueue, ...]:
        items = await self.get(self._path("queues"), params=_WITHOUT_STATISTICS)
        return tuple(queue_from(item) for item in items)

    async def queue_messages(self, name: str) -> int | None:
        """Return the messages in a queue, ready and unacknowledged, as of the last seconds; None
        where the broker has no figure yet, or there is no such queue."""
        queue = await self.get(self._path("queues", name), missing={})
        messages = queue.get("messages")
        return messages if isinstance(messages, int) else None

    async def depths(self) -> dict[str, tuple[int, int]]:
        """Return, by queue, the messages that wait and the consumers, as of the last seconds."""
        columns = {"columns": "name,messages_ready,consumers"}
        return {
            item["name"]: (item.get("messages_ready") or 0, item.get("consumers") or 0)
            for item in await self.get(self._path("queues"), params=columns)
        }

    async def queue_sizes(self) -> dict[str, tuple[int, int]]:
        """Return, by queue, its messages and the bytes of their bodies, as of the last seconds."""
        columns = {"columns": "name,messages,message_bytes"}
        return {
            item["name"]: (item.get("messages") or 0, item.get("message_bytes") or 0)
            for item in await self.get(self._path("queues"), params=columns)
        }

    async def bindings(self) -> tuple[Binding, ...]:
        items = await self.get(self._path("bindings"))
        return tuple(binding_from(item) for item in items if item["source"])

    async def policies(self) -> tuple[Policy, ...]:
        return tuple(policy_from(item) for item in await self.get(self._path("policies")))

    async def operator_policies(self) -> tuple[Policy, ...]:
        return tuple(policy_from(item) for item in await self.get(self._path("operator-policies")))

    async def consumers(self) -> tuple[Mapping[str, Any], ...]:
        """Return all consumers, each with its `consumer_tag`."""
        return tuple(await self.get(self._path("consumers")))

    async def put_exchange(self, exchange: Exchange) -> None:
        """Declare it. Refused when one of that name exists with another type or arguments."""
        body = {
            "type": exchange.type,
            "durable": exchange.durable,
            "auto_delete": exchange.auto_delete,
            "internal": exchange.internal,
            "arguments": dict(exchange.arguments),
        }
        await self._send("PUT", self._path("exchanges", exchange.name), body)

    async def put_queue(self, queue: Queue) -> None:
        """Declare it. Refused when one of that name exists with another type or arguments."""
        body = {
            "durable": queue.durable,
            "auto_delete": queue.auto_delete,
            "arguments": queue.declare_arguments,
        }
        path = self._path("queues", queue.name)
        for pause in _DECLARE_PAUSES:
            response = await self._http.request("PUT", path, body=body)
            if not _is_being_made(response):
                break
            await asyncio.sleep(pause)
        self._check(response)

    async def delete_queue(self, name: str, *, if_empty: bool = False) -> bool:
        """Delete a queue with its messages; False when there is none. With `if_empty` (classic
        queues only) the broker refuses while messages wait there."""
        path = self._path("queues", name) + ("?if-empty=true" if if_empty else "")
        return await self._send("DELETE", path, may_be_missing=True)

    async def delete_exchange(self, name: str) -> bool:
        """Delete an exchange with its bindings; False when there is none."""
        return await self._send("DELETE", self._path("exchanges", name), may_be_missing=True)

    async def delete_policy(self, name: str) -> bool:
        """Delete a policy; False when there is none."""
        return await self._send("DELETE", self._path("policies", name), may_be_missing=True)

    async def put_binding(self, binding: Binding) -> None:
        """Add a binding; one that exists already is left alone."""
        body = {"routing_key": binding.routing_key, "arguments": dict(binding.arguments)}
        await self._send("POST", self._binding_path(binding), body)

    async def delete_binding(self, binding: Binding) -> bool:
        """Remove a binding. False when there is none: another process was quicker."""
        for item in await self.get(self._binding_path(binding), missing=()):
            if binding_from(item) == binding:
                path = f"{self._binding_path(binding)}/{_quote(item['properties_key'])}"
                return await self._send("DELETE", path, may_be_missing=True)
        return False

    async def put_policy(self, policy: Policy) -> None:
        """Set a policy; one of the same name is replaced."""
        body = {
            "pattern": policy.pattern,
            "definition": dict(policy.definition),
            "priority": policy.priority,
            "apply-to": policy.apply_to,
        }
        await self._send("PUT", self._path("policies", policy.name), body)

    async def has_vhost(self) -> bool:
        """Tell whether the broker has the virtual host."""
        return bool(await self.get(f"/vhosts/{_quote(self._vhost)}", missing={}))

    async def put_vhost(self, user: str) -> None:
        """Make the virtual host, and permit the user everything in it. Needs the tag
        `administrator`, as do the methods for users and permissions."""
        await self._send("PUT", f"/vhosts/{_quote(self._vhost)}")
        await self.put_permissions(user, {"configure": ".*", "write": ".*", "read": ".*"})

    async def has_user(self, name: str) -> bool:
        return bool(await self.get(f"/users/{_quote(name)}", missing={}))

    async def put_user(self, name: str, *, password: str | None, tags: Sequence[str]) -> None:
        """Make the user. An existing user gets the tags, and keeps its password where None is
        given."""
        body: dict[str, Any] = {"tags": ",".join(tags)}
        if password is None:
            user = await self.get(f"/users/{_quote(name)}")
            body |= {key: user[key] for key in ("password_hash", "hashing_algorithm")}
        else:
            body["password"] = password
        await self._send("PUT", f"/users/{_quote(name)}", body)

    async def put_permissions(self, user: str, permissions: Mapping[str, str]) -> None:
        """Set what the user may configure, write and read in the virtual host; patterns of
        names."""
        await self._send("PUT", f"/permissions/{_quote(self._vhost)}/{_quote(user)}", permissions)

    async def delete_vhost(self) -> None:
        """Delete the virtual host with everything in it. Needs the tag `administrator`."""
        await self._send("DELETE", f"/vhosts/{_quote(self._vhost)}", may_be_missing=True)

    async def import_definitions(self, definitions: Mapping[str, Any]) -> None:
        """Import a definitions file, into the virtual hosts that it names. Existing objects are
        left as they are, policies are overwritten. Needs the tag `administrator`."""
        await self._send("POST", "/definitions", definitions)

    async def get(
        self, path: str, *, params: Mapping[str, str] | None = None, missing: Any = None
    ) -> Any:
        """Return the JSON at a path below `/api`. `missing`, where it is given, is returned for a
        404."""
        response = await self._http.request("GET", path, params=params)
        if response.status_code == HTTPStatus.NOT_FOUND and missing is not None:
            return missing
        self._check(response)
        try:
            return response.json()
        except (ValueError, RecursionError) as error:
            raise ManagementError(
                f"{self._http.base} does not answer like the RabbitMQ management API: set "
                "JOBS_MANAGEMENT_URL to its address, for example http://localhost:15672"
            ) from error

    async def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        may_be_missing: bool = False,
    ) -> bool:
        response = await self._http.request(method, path, body=body)
        if may_be_missing and response.status_code == HTTPStatus.NOT_FOUND:
            return False
        self._check(response)
        return True

    def _check(self, response: httpx.Response) -> None:
        if response.is_success:
            return
        status, (code, reason) = response.status_code, _reason_of(response)
        kind = ManagementError
        # Both are 401: a wrong password has the code `not_authorized`, a right that is missing
        # has `not_authorised`.
        if status == HTTPStatus.UNAUTHORIZED and code != "not_authorised":
            kind = ManagementForbidden
            text = "refused the user or the password: check JOBS_MANAGEMENT_URL or JOBS_AMQP_URL"
        elif status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            kind = ManagementForbidden
            tag = _TAGS.get(reason, "policymaker")
            text = (
                f"does not let this user do that ({reason}): it needs the tag `{tag}` and "
                f"permissions on the virtual host {self._vhost!r}"
            )
        elif status == HTTPStatus.NOT_FOUND:
            text = (
                f"does not know {response.request.url.path} ({reason}): does the virtual host "
                f"{self._vhost!r} exist, and may this user see it? "
                f"rabbitmqctl add_vhost {shlex.quote(self._vhost)}"
            )
        else:
            text = f"refused {response.request.method} {response.request.url.path}: {reason}"
        raise kind(f"the management API at {self._http.base} {text}")

    def _path(self, kind: str, *names: str) -> str:
        return "/" + "/".join([kind, *(_quote(name) for name in (self._vhost, *names))])

    def _binding_path(self, binding: Binding) -> str:
        kind = "q" if binding.destination_type == "queue" else "e"
        source, destination = _quote(binding.source), _quote(binding.destination)
        return f"{self._path('bindings')}/e/{source}/{kind}/{destination}"


def _quote(name: str) -> str:
    return quote(name, safe="")


def _is_being_made(response: httpx.Response) -> bool:
    """Tell whether a queue is still being declared. A quorum queue is known before its members have
    started: until then, another declaration is answered that its node is down (RabbitMQ 4.3), as
    it is when a node really is down."""
    return (
        response.status_code == HTTPStatus.NOT_FOUND
        and "is down or inaccessible" in _reason_of(response)[1]
    )


def _reason_of(response: httpx.Response) -> tuple[str, str]:
    """Return the broker's code for a refusal, and its reason in one line."""
    try:
        body = response.json()
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):  # the answer of a proxy before the broker
        return "", f"HTTP {response.status_code}"
    code = str(body.get("error", ""))
    return code, " ".join(str(body.get("reason") or code).split())
