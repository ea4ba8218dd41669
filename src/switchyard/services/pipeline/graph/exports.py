"""Write the graph into files for other programs: GraphML with all nodes, or Parquet with the
edges."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from xml.sax.saxutils import XMLGenerator
from xml.sax.xmlreader import AttributesImpl

from switchyard.services.common.errors import InvalidInput
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.records.graph import GraphEdge, GraphNode

if TYPE_CHECKING:  # the job types are imported without a database
    from switchyard.services.engine.ledger import Ledger

PAGE_SIZE = 5_000
"""Most nodes or edges that are in memory at once."""

_ILLEGAL_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NODE_FIELDS = ("kind", "label", "year", "cited", "rank", "community", "documents", "provenance")
_EDGE_FIELDS = ("kind", "weight", "provenance")
_VALUE_TYPES = {
    "year": "int",
    "cited": "long",
    "rank": "double",
    "community": "long",
    "weight": "double",
}


class UnknownFormat(InvalidInput):
    """The file's name has no ending of a known format."""


async def export(ledger: Ledger, file: Path) -> tuple[int, int]:
    """Write the graph into a file, in the format of its name's ending: `.graphml` or `.parquet`.
    Returns the numbers of nodes and edges in it. The file appears when it is complete.

    Edges that are added meanwhile may be missing. Raises UnknownFormat, OSError, LedgerUnavailable.
    """
    suffix = file.suffix.lower()
    if suffix not in (".graphml", ".parquet"):
        raise UnknownFormat(f"{file.name}: its name must end with .graphml or .parquet")
    with _write_atomically(file) as target:
        return await (_write_graphml if suffix == ".graphml" else _write_parquet)(ledger, target)


@contextmanager
def _write_atomically(file: Path) -> Iterator[IO[bytes]]:
    """Open a file that gets its name when it is complete."""
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        with part.open("xb") as target:
            yield target
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


async def _write_parquet(ledger: Ledger, target: IO[bytes]) -> tuple[int, int]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = pa.string()
    schema = pa.schema(
        {
            "source": text,
            "target": text,
            "kind": text,
            "weight": pa.float64(),
            "provenance": text,
        }
    )
    count, reads = 0, PipelineLedger(ledger).graph_reads
    with pq.ParquetWriter(target, schema) as writer:
        last_edge: Sequence[Any] | None = None
        while True:
            edges, last_edge = await reads.graph_edges_after(last_edge, PAGE_SIZE)
            rows = [{name: getattr(edge, name) for name in schema.names} for edge in edges]
            if rows:
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            count += len(edges)
            if last_edge is None:
                return 0, count


async def _write_graphml(ledger: Ledger, target: IO[bytes]) -> tuple[int, int]:
    xml = _GraphmlWriter(target)
    xml.start("graphml", xmlns="http://graphml.graphdrawing.org/xmlns")
    for element, names in (("node", _NODE_FIELDS), ("edge", _EDGE_FIELDS)):
        for name in names:
            value_type = _VALUE_TYPES.get(name, "string")
            attributes = {
                "id": f"{element}_{name}",
                "for": element,
                "attr.name": name,
                "attr.type": value_type,
            }
            xml.empty("key", attributes)
    xml.start("graph", id="switchyard", edgedefault="directed")
    written_keys: set[str] = set()
    last_id, reads = 0, PipelineLedger(ledger).graph_reads
    while nodes := await reads.graph_nodes_after(last_id, PAGE_SIZE):
        for _, node in nodes:
            xml.node(node)
            written_keys.add(node.key)
        last_id = nodes[-1][0]
    count = 0
    last_edge: Sequence[Any] | None = None
    while True:
        edges, last_edge = await reads.graph_edges_after(last_edge, PAGE_SIZE)
        for edge in edges:
            # An edge that was added after the nodes were read may lead to a missing node.
            if edge.source in written_keys and edge.target in written_keys:
                xml.edge(edge)
                count += 1
        if last_edge is None:
            break
    xml.end("graph")
    xml.end("graphml")
    return len(written_keys), count


class _GraphmlWriter:
    """Writes elements of GraphML, each on a line."""

    def __init__(self, target: IO[bytes]) -> None:
        self._out = XMLGenerator(target, "utf-8", short_empty_elements=True)
        self._out.startDocument()

    def start(self, name: str, **attributes: str) -> None:
        self._open(name, attributes)
        self._out.ignorableWhitespace("\n")

    def end(self, name: str) -> None:
        self._out.endElement(name)
        self._out.ignorableWhitespace("\n")

    def empty(self, name: str, attributes: dict[str, str]) -> None:
        self._open(name, attributes)
        self.end(name)

    def node(self, node: GraphNode) -> None:
        self._open("node", {"id": node.key})
        for name in _NODE_FIELDS:
            value = getattr(node, name)
            self._data("node", name, " ".join(value) if name == "documents" else value)
        self.end("node")

    def edge(self, edge: GraphEdge) -> None:
        self._open("edge", {"source": edge.source, "target": edge.target})
        for name in _EDGE_FIELDS:
            self._data("edge", name, getattr(edge, name))
        self.end("edge")

    def _data(self, element: str, name: str, value: object) -> None:
        if value is not None and value != "":
            self._open("data", {"key": f"{element}_{name}"})
            self._out.characters(_replace_illegal(str(value)))
            self._out.endElement("data")

    def _open(self, name: str, attributes: dict[str, str]) -> None:
        legal_attributes = {each: _replace_illegal(value) for each, value in attributes.items()}
        self._out.startElement(name, AttributesImpl(legal_attributes))


def _replace_illegal(text: str) -> str:
    """Replace each character that XML does not allow by U+FFFD."""
    return _ILLEGAL_IN_XML.sub("\ufffd", text)
