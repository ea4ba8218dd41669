"""Virtual hosts for tests, one at a time each; those with a topology are used more than once.

To make and delete a topology costs a node a sixth of a second of processor time, which was a
quarter of all that a run cost. So a vhost is kept for the next test that wants its topology.
No test may see anything of another: before it is handed out again, it is emptied until a look finds
nobody connected to it, nothing in its queues, and declared what was there at first alone.
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

MOST_KEPT = 4
"""Vhosts that wait for their next test, of one process on one node."""

LONGEST_KEPT = 5.0
"""Seconds. Tests that want the same topology are neighbours: 19 of 20 come within this time, most
within one second. Each second in which its queues idle costs a node 5 ms of processor time."""

MOST_LOOKS = 4
"""Until one finds nothing: messages and connections, then what was declared, then neither."""

EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}
DECLARED = ("queues", "exchanges", "bindings", "policies", "parameters")
BESIDE = ("permissions", "topic-permissions")


class Refused(RuntimeError):
    """The management API did not do as it was told; the message has its answer."""


NOT_CLEAN = (Refused, OSError, HTTPException)
"""A vhost that can't be emptied or looked through is not used again."""


class Vhosts:
    """Those of one node that this process has made."""

    def __init__(self, node: LocalNode) -> None:
        self.node = node
        # A test needs a dozen requests: httpx takes five times the processor time for each.
        self._http = HTTPConnection(LOOPBACK, node.management_port, timeout=30)
        login = b64encode(f"{node.user}:{node.password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
        self._at_first: dict[str, Any] = {}
        """What was declared in each that may be used again, once it had its topology."""
        self._topologies: dict[str, str] = {}
        self._kept: dict[str, float] = {}
        """Since when each waits, the one that waits longest first."""

    def make(self) -> str:
        """Return one with nothing in it."""
        vhost = f"test-{secrets.token_hex(6)}"
        self._send("PUT", f"/vhosts/{vhost}")
        self._send("PUT", f"/permissions/{vhost}/{self.node.user}", EVERYTHING)
        return vhost

    def with_topology(self, topology: Topology) -> str:
        """Return one with this topology and nothing else in it."""
        wanted = json.dumps(render(topology, vhost=""), sort_keys=True)
        for vhost in [each for each in self._kept if self._topologies[each] == wanted]:
            del self._kept[vhost]
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
        if vhost not in self._at_first:
            self._delete(vhost)
            return
        self._kept[vhost] = time.monotonic()
        if len(self._kept) > MOST_KEPT:
            self._forget(next(iter(self._kept)))

    def forget_idle(self) -> None:
        """Delete those that nobody has wanted for long."""
        for vhost, since in list(self._kept.items()):
            if time.monotonic() - since > LONGEST_KEPT:
                self._forget(vhost)

    def close(self) -> None:
        """Delete those that are kept."""
        for vhost in list(self._kept):
            self._forget(vhost)
        self._http.close()

    def _forget(self, vhost: str) -> None:
        del self._kept[vhost]
        self._delete(vhost)

    def _delete(self, vhost: str) -> None:
        self._at_first.pop(vhost, None)
        self._topologies.pop(vhost, None)
        self._send("DELETE", f"/vhosts/{vhost}")

    def _is_as_at_first(self, vhost: str) -> bool:
        """Return whether it is, or could be made so; False where it can't be emptied or looked
        through, and where a test has changed what was there."""
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
        # What has died in a quorum queue and is on its way to another one.
        queues = self._get(f"/queues/{vhost}?columns=name,messages_dlx")
        found += sum(each.get("messages_dlx", 0) for each in queues)
        # Last, because whoever held messages has given them back. The queues themselves know what
        # they have; the figures of the management API are late.
        found += self._purge(vhost)
        if found:
            return False  # what is declared is asked once all is quiet
        at_first, now = self._at_first[vhost], self._declared_in(vhost)
        for kind in ("queues", "exchanges"):
            for name in _names(now[kind]) - _names(at_first[kind]):
                self._send("DELETE", f"/{kind}/{vhost}/{quote(name, safe='')}")
        return now == at_first

    def _purge(self, vhost: str) -> int:
        """Return how many messages were there. First those that go on to another queue by
        themselves."""
        names = sorted(
            _names(self._at_first[vhost]["queues"]), key=lambda name: ".retry." not in name
        )
        with RawChannel(self.node.amqp_url_of(vhost)) as channel:
            return channel.purge(names)

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
        return json.loads(self._send("GET", path))

    def _send(self, method: str, path: str, body: Any = None) -> bytes:
        try:
            status, answer = self._answer(method, path, body)
        except ConnectionError:  # the node closes what was idle for a minute
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
