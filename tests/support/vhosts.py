"""Virtual hosts for tests, one at a time each; those with a topology are used more than once.

To make and delete a topology costs a node a sixth of a second of processor time, which was a
quarter of all that a run cost. So a vhost is kept for the next test that wants its topology.
No test may see anything of another: before it is handed out again, it is emptied until a look finds
nobody connected to it, nothing in its queues, and declared what was there at first alone.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import httpx
import pika
from pika.exceptions import AMQPError

from switchyard.broker.topology.definitions import render
from switchyard.broker.topology.model import Topology
from switchyard.cli.system.node import LocalNode

MOST_KEPT = 2
"""Vhosts that wait for their next test, of one process on one node. Those of the same topology are
neighbours mostly; and each queue that idles costs a node 0.05 % of a processor, all the time."""

MOST_LOOKS = 3

EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}
DECLARED = ("queues", "exchanges", "bindings", "policies", "parameters")
BESIDE = ("permissions", "topic-permissions")


class Refused(RuntimeError):
    """The management API did not do as it was told; the message has its answer."""


NOT_CLEAN = (Refused, AMQPError, OSError, httpx.TransportError)
"""A vhost that can't be emptied or looked through is not used again."""


class Vhosts:
    """Those of one node that this process has made."""

    def __init__(self, node: LocalNode) -> None:
        self.node = node
        self._http = httpx.Client(
            base_url=f"{node.management_url}/api", trust_env=False, verify=False, timeout=30
        )
        self._at_first: dict[str, Any] = {}
        """What was declared in each that may be used again, once it had its topology."""
        self._topologies: dict[str, str] = {}
        self._kept: list[str] = []
        """Emptied, the one that waits longest first."""

    def make(self) -> str:
        """One with nothing in it."""
        vhost = f"test-{secrets.token_hex(6)}"
        self._send("PUT", f"/vhosts/{vhost}")
        self._send("PUT", f"/permissions/{vhost}/{self.node.user}", EVERYTHING)
        return vhost

    def with_topology(self, topology: Topology) -> str:
        """One with this topology and nothing else in it."""
        wanted = json.dumps(render(topology, vhost=""), sort_keys=True)
        for vhost in [each for each in self._kept if self._topologies[each] == wanted]:
            self._kept.remove(vhost)
            if self._is_as_at_first(vhost):
                return vhost
            self._delete(vhost)
        vhost = self.make()
        parts = render(topology, vhost=vhost)
        del parts["vhosts"]  # it is there, and so are its permissions
        self._send("POST", f"/definitions/{vhost}", parts)
        self._at_first[vhost] = self._declared_in(vhost)
        self._topologies[vhost] = wanted
        return vhost

    def give_back(self, vhost: str) -> None:
        """Keep it for another test, or delete it with all that is in it."""
        if vhost in self._at_first:
            self._kept.append(vhost)
            if len(self._kept) <= MOST_KEPT:
                return
            vhost = self._kept.pop(0)
        self._delete(vhost)

    def close(self) -> None:
        """Delete those that are kept."""
        for vhost in self._kept:
            self._send("DELETE", f"/vhosts/{vhost}")
        self._kept.clear()
        self._http.close()

    def _delete(self, vhost: str) -> None:
        self._at_first.pop(vhost, None)
        self._topologies.pop(vhost, None)
        self._send("DELETE", f"/vhosts/{vhost}")

    def _is_as_at_first(self, vhost: str) -> bool:
        """Whether it is, or could be made so; False where it can't be emptied or looked through,
        and where a test has changed what was there."""
        try:
            return any(self._found_clean(vhost) for _ in range(MOST_LOOKS))
        except NOT_CLEAN:
            return False

    def _found_clean(self, vhost: str) -> bool:
        """Take away all that a test has added; True where there was nothing."""
        found = 0
        for connection in self._get(f"/vhosts/{vhost}/connections"):
            self._send("DELETE", f"/connections/{quote(connection['name'], safe='')}")
            found += 1
        at_first, now = self._at_first[vhost], self._declared_in(vhost)
        for kind in ("queues", "exchanges"):
            for name in _names(now[kind]) - _names(at_first[kind]):
                self._send("DELETE", f"/{kind}/{vhost}/{quote(name, safe='')}")
        # What has died in a quorum queue and is on its way to another one.
        found += sum(each.get("messages_dlx", 0) for each in self._get(f"/queues/{vhost}"))
        # Last, because whoever held messages has given them back. The queues themselves know what
        # they have; the figures of the management API are late.
        found += self._purge(vhost)
        return not found and now == at_first

    def _purge(self, vhost: str) -> int:
        """How many messages were there. First those that go on to another queue by themselves."""
        names = sorted(
            _names(self._at_first[vhost]["queues"]), key=lambda name: ".retry." not in name
        )
        with self._channel(vhost) as channel:
            return sum(channel.queue_purge(name).method.message_count for name in names)

    @contextmanager
    def _channel(self, vhost: str) -> Iterator[Any]:
        with pika.BlockingConnection(
            pika.URLParameters(self.node.amqp_url_of(vhost))
        ) as connection:
            yield connection.channel()

    def _declared_in(self, vhost: str) -> dict[str, list[str]]:
        found = self._get(f"/definitions/{vhost}")
        declared = {kind: found.get(kind, []) for kind in DECLARED}
        declared |= {kind: self._get(f"/vhosts/{vhost}/{kind}") for kind in BESIDE}
        declared["operator-policies"] = self._get(f"/operator-policies/{vhost}")
        return {
            kind: sorted(json.dumps(each, sort_keys=True) for each in parts)
            for kind, parts in declared.items()
        }

    def _get(self, path: str) -> Any:
        return self._send("GET", path).json()

    def _send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        answer = self._http.request(method, path, json=body)
        if answer.is_error and not (method == "DELETE" and answer.status_code == 404):
            raise Refused(f"{method} {path}: {answer.status_code}: {answer.text[:300]}")
        return answer


def _names(parts: list[str]) -> set[str]:
    return {json.loads(part)["name"] for part in parts}
