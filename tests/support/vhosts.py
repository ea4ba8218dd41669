"""Virtual hosts for tests, one at a time each; those with a topology are used more than once.

To make and delete a topology costs a node a sixth of a second of processor time, which was a
quarter of all that a run cost. So a vhost whose topology the next test wants is emptied and kept.
No test may see anything of another: it is handed out again only while nobody is connected to it,
every queue is empty, and all that is declared in it is what was there at first.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import httpx
import pika
from pika.exceptions import AMQPError

from switchyard.broker.topology.definitions import render
from switchyard.broker.topology.model import Topology
from switchyard.cli.system.node import LocalNode

MOST_KEPT = 5
"""Vhosts that wait for their next test, of one process on one node: idle queues cost a little."""

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
            if self._done(self._is_as_at_first, vhost):
                self._kept.remove(vhost)
                return vhost
        vhost = self.make()
        parts = render(topology, vhost=vhost)
        del parts["vhosts"]  # it is there, and so are its permissions
        self._send("POST", f"/definitions/{vhost}", parts)
        self._at_first[vhost] = self._declared_in(vhost)
        self._topologies[vhost] = wanted
        return vhost

    def give_back(self, vhost: str) -> None:
        """Keep it for another test, or delete it with all that is in it."""
        if vhost in self._at_first and self._done(self._empty, vhost):
            self._kept.append(vhost)
            if len(self._kept) <= MOST_KEPT:
                return
            vhost = self._kept.pop(0)
        self._at_first.pop(vhost, None)
        self._topologies.pop(vhost, None)
        self._send("DELETE", f"/vhosts/{vhost}")

    def close(self) -> None:
        """Delete those that are kept."""
        for vhost in self._kept:
            self._send("DELETE", f"/vhosts/{vhost}")
        self._kept.clear()
        self._http.close()

    def _done(self, step: Callable[[str], bool], vhost: str) -> bool:
        try:
            return step(vhost)
        except NOT_CLEAN:
            return False

    def _empty(self, vhost: str) -> bool:
        """Take away all that a test has added; False where it changed what was there."""
        for connection in self._get(f"/vhosts/{vhost}/connections"):
            self._send("DELETE", f"/connections/{quote(connection['name'], safe='')}")
        at_first, now = self._at_first[vhost], self._declared_in(vhost)
        for kind in ("queues", "exchanges"):
            for name in _names(now[kind]) - _names(at_first[kind]):
                self._send("DELETE", f"/{kind}/{vhost}/{quote(name, safe='')}")
        self._purge(vhost)
        return bool(now == at_first or self._declared_in(vhost) == at_first)

    def _is_as_at_first(self, vhost: str) -> bool:
        queues = self._get(f"/queues/{vhost}")
        figures = ("messages", "messages_dlx", "consumers")
        if any(queue.get(figure) for queue in queues for figure in figures):
            return False  # the figures may be late: then it is for a later test
        if self._get(f"/vhosts/{vhost}/connections"):
            return False
        if self._declared_in(vhost) != self._at_first[vhost]:
            return False
        return self._purge(vhost) == 0  # as the queues themselves know it

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
