"""Virtual hosts for tests, one at a time each; those with a topology are reused.

Making and deleting a topology costs a node a sixth of a second of processor time, which was a
quarter of a whole run's. So a vhost is kept for the next test that needs its topology. No test may
see anything of another: before a vhost is handed out again, it is cleaned until a check finds no
connection, no message, and only the original declarations.
"""

from __future__ import annotations

import json
import secrets
import time
from base64 import b64encode
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import quote

from switchyard.broker.management.model import Topology
from switchyard.broker.topology.definitions import render
from switchyard.cli.system.free_ports import LOOPBACK
from switchyard.cli.system.rabbitmq_node import LocalNode
from tests.support.raw_amqp import RawChannel

MAX_KEPT = 4
"""Vhosts that one process keeps on one node for later tests."""

MAX_KEPT_SECONDS = 5.0
"""Seconds. Tests that want the same topology are neighbours: 19 of 20 come within this time, most
within one second. Each second in which its queues idle costs a node 5 ms of processor time."""

MAX_CHECKS = 4
"""Checks until one must find a vhost clean: the first removes messages and connections, the next
added declarations, and then nothing may be left."""

EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}
DECLARED = ("queues", "exchanges", "bindings", "policies", "parameters")
SEPARATELY_READ = ("permissions", "topic-permissions")


class Refused(RuntimeError):
    """The management API refused a request; the message has its answer."""


NOT_CLEAN = (Refused, OSError, HTTPException)
"""Errors after which a vhost is not reused, because it can't be cleaned or checked."""


class Vhosts:
    """The vhosts that this process has made on one node."""

    def __init__(self, node: LocalNode) -> None:
        self.node = node
        # A test needs a dozen requests: httpx takes five times the processor time for each.
        self._http = HTTPConnection(LOOPBACK, node.management_port, timeout=30)
        login = b64encode(f"{node.user}:{node.password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
        self._original: dict[str, Any] = {}
        """The original declarations of each vhost with a topology."""
        self._topologies: dict[str, str] = {}
        self._kept: dict[str, float] = {}
        """When each kept vhost was given back, oldest first."""

    def make(self) -> str:
        """Make an empty vhost, and return its name."""
        vhost = f"test-{secrets.token_hex(6)}"
        self._send("PUT", f"/vhosts/{vhost}")
        self._send("PUT", f"/permissions/{vhost}/{self.node.user}", EVERYTHING)
        return vhost

    def with_topology(self, topology: Topology) -> str:
        """Return the name of a vhost with this topology and nothing else."""
        topology_json = json.dumps(render(topology, vhost=""), sort_keys=True)
        for vhost in [each for each in self._kept if self._topologies[each] == topology_json]:
            del self._kept[vhost]
            if self._is_clean(vhost):
                return vhost
            self._delete(vhost)
        vhost = self.make()
        parts = render(topology, vhost=vhost)
        del parts["vhosts"]  # the vhost and its permissions exist
        self._send("POST", f"/definitions/{vhost}", parts)
        self._original[vhost] = self._declared_in(vhost)
        self._topologies[vhost] = topology_json
        return vhost

    def give_back(self, vhost: str) -> None:
        """Keep a vhost for another test, or delete it with its contents."""
        if vhost not in self._original:
            self._delete(vhost)
            return
        self._kept[vhost] = time.monotonic()
        if len(self._kept) > MAX_KEPT:
            self._forget(next(iter(self._kept)))

    def forget_idle(self) -> None:
        """Delete the vhosts that no test has needed for long."""
        for vhost, since in list(self._kept.items()):
            if time.monotonic() - since > MAX_KEPT_SECONDS:
                self._forget(vhost)

    def close(self) -> None:
        """Delete all kept vhosts."""
        for vhost in list(self._kept):
            self._forget(vhost)
        self._http.close()

    def _forget(self, vhost: str) -> None:
        del self._kept[vhost]
        self._delete(vhost)

    def _delete(self, vhost: str) -> None:
        self._original.pop(vhost, None)
        self._topologies.pop(vhost, None)
        self._send("DELETE", f"/vhosts/{vhost}")

    def _is_clean(self, vhost: str) -> bool:
        """Clean a vhost, and return whether that succeeded; False if a test has changed the
        original declarations, or the vhost can't be cleaned or checked."""
        try:
            return any(self._clean_once(vhost) for _ in range(MAX_CHECKS))
        except NOT_CLEAN:
            return False

    def _clean_once(self, vhost: str) -> bool:
        """Remove all that a test has added; return whether there was nothing to remove."""
        removed = 0
        for connection in self._get(f"/vhosts/{vhost}/connections"):
            self._send("DELETE", f"/connections/{quote(connection['name'], safe='')}")
            removed += 1
        # Messages that a quorum queue is dead-lettering to another queue.
        queues = self._get(f"/queues/{vhost}?columns=name,messages_dlx")
        removed += sum(each.get("messages_dlx", 0) for each in queues)
        # Last, after unacknowledged messages were requeued. The queues' own counts are used,
        # because the
        # management API's are late.
        removed += self._purge(vhost)
        if removed:
            return False  # declarations are checked once no messages were left
        original, now = self._original[vhost], self._declared_in(vhost)
        for kind in ("queues", "exchanges"):
            for name in _names(now[kind]) - _names(original[kind]):
                self._send("DELETE", f"/{kind}/{vhost}/{quote(name, safe='')}")
        return now == original

    def _purge(self, vhost: str) -> int:
        """Purge all queues, and return the number of messages. Retry queues are first, because
        their messages move on by themselves."""
        names = sorted(
            _names(self._original[vhost]["queues"]), key=lambda name: ".retry." not in name
        )
        with RawChannel(self.node.amqp_url_of(vhost)) as channel:
            return channel.purge(names)

    def _declared_in(self, vhost: str) -> dict[str, list[str]]:
        definitions = self._get(f"/definitions/{vhost}")
        declared = {kind: definitions.get(kind, []) for kind in DECLARED}
        declared |= {kind: self._get(f"/vhosts/{vhost}/{kind}") for kind in SEPARATELY_READ}
        declared["operator-policies"] = self._get(f"/operator-policies/{vhost}")
        return {
            kind: sorted(json.dumps(each, sort_keys=True) for each in parts)
            for kind, parts in declared.items()
        }

    def _get(self, path: str) -> Any:
        return json.loads(self._send("GET", path))

    def _send(self, method: str, path: str, body: Any = None) -> bytes:
        try:
            status, answer = self._answer(method, path, body)
        except ConnectionError:  # the node closes connections that were idle for a minute
            status, answer = self._answer(method, path, body)
        if status >= 400 and not (method == "DELETE" and status == 404):
            raise Refused(f"{method} {path}: {status}: {answer[:300]!r}")
        return answer

    def _answer(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        content = None if body is None else json.dumps(body)
        try:
            self._http.request(method, f"/api{path}", content, self._headers)
            with self._http.getresponse() as response:
                return response.status, response.read()
        except BaseException:
            self._http.close()  # the next request begins anew
            raise


def _names(parts: list[str]) -> set[str]:
    return {json.loads(part)["name"] for part in parts}
