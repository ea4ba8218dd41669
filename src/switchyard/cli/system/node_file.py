"""What a private node must have again at its next start: its password and ports."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchyard.cli.system.node_setup import write_private
from switchyard.cli.system.ports import is_free

if TYPE_CHECKING:
    from switchyard.cli.system.node import LocalNode

PORTS = ("amqp_port", "management_port")


@dataclass(frozen=True, slots=True)
class NodeFile:
    """A file that its owner alone may read: a shell that knows the address goes on with it."""

    path: Path

    def read(self) -> dict[str, Any]:
        """Options for LocalNode; ports that somebody has taken meanwhile are left out."""
        try:
            kept = json.loads(self.path.read_text())
            password = str(kept["password"])
            ports = {name: int(kept[name]) for name in PORTS}
        except (OSError, ValueError, KeyError, TypeError):
            return {}  # the first start, or a damaged file: new ones do as well
        free = {name: port for name, port in ports.items() if is_free(port)}
        return {"password": password, **free}

    def write(self, node: LocalNode) -> None:
        kept = {"password": node.password} | {name: getattr(node, name) for name in PORTS}
        write_private(self.path, json.dumps(kept))
