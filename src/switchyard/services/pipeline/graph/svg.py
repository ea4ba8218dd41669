"""Draw a neighbourhood of the graph as SVG: columns by distance; nodes whose edges lead to the
middle node stand on its left.

Every label has a line of its own beside its dot, so none covers another. Labels come from anybody's
files; the XML library escapes them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from xml.etree import ElementTree as ET

from switchyard.services.pipeline.graph.descriptions import tidy
from switchyard.services.pipeline.records.graph import EdgeKind, NodeKind

LINE_HEIGHT = 24
"""Pixels from one label to the next."""
MAX_LABEL_LENGTH = 46
"""Most letters of a label; its tooltip has the whole label."""
LETTER_WIDTH = 6.9
"""Approximate width of a letter in pixels, as the font is not known."""
LABEL_WIDTH = 340
"""Pixels for a column's labels."""
COLUMN_GAP = 150
"""Pixels between columns, for the lines."""
MARGIN = 40
HEADER_HEIGHT = 64
"""Pixels for the legend above."""

COLOURS: Mapping[NodeKind, str] = {
    NodeKind.DOCUMENT: "#1d6fa5",
    NodeKind.WORK: "#7a8b99",
    NodeKind.AUTHOR: "#b0562b",
    NodeKind.VENUE: "#6b4fa0",
    NodeKind.TOPIC: "#3d8a4e",
}
STROKES: Mapping[EdgeKind, tuple[str, str]] = {  # colour and dashes
    EdgeKind.CITES: ("#4a5a68", ""),
    EdgeKind.SIMILAR: ("#1d6fa5", "6 4"),
    EdgeKind.WRITTEN_BY: ("#b0562b", ""),
    EdgeKind.PUBLISHED_IN: ("#6b4fa0", ""),
    EdgeKind.ABOUT: ("#3d8a4e", ""),
}
_KIND_ORDER = list(NodeKind)
_SVG = "http://www.w3.org/2000/svg"


@dataclass(frozen=True, slots=True)
class _NodePosition:
    """Where a node is drawn. Its label is on the side away from the middle column, and edges to
    farther nodes begin behind the label."""

    x: float
    y: float
    column: int
    label: str

    @property
    def left(self) -> float:
        """Where edges to the left begin."""
        return self.x - 9 - (self._width if self.column < 0 else 0)

    @property
    def right(self) -> float:
        return self.x + 9 + (self._width if self.column > 0 else 0)

    @property
    def _width(self) -> float:
        return 8 + LETTER_WIDTH * _text_width(self.label)


class DrawnNode(Protocol):
    """A node, from the ledger or from the HTTP API."""

    @property
    def key(self) -> str: ...
    @property
    def kind(self) -> NodeKind: ...
    @property
    def label(self) -> str: ...
    @property
    def year(self) -> int | None: ...
    @property
    def cited(self) -> int: ...


class DrawnEdge(Protocol):
    """An edge between the keys of two nodes."""

    @property
    def source(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def kind(self) -> EdgeKind: ...
    @property
    def weight(self) -> float: ...


class DrawnGraph(Protocol):
    """A node, which is the first, and its neighbourhood."""

    @property
    def nodes(self) -> Sequence[DrawnNode]: ...
    @property
    def edges(self) -> Sequence[DrawnEdge]: ...
    @property
    def truncated(self) -> bool: ...


def draw(graph: DrawnGraph, distances: Sequence[int]) -> str:
    """Draw a neighbourhood. Returns the text of an SVG file."""
    columns = _sort_into_columns(graph, distances)
    rows = max(len(each) for each in columns.values())
    to_left, to_right = -min(columns), max(columns)
    centre = MARGIN + max(to_left * (COLUMN_GAP + LABEL_WIDTH), LABEL_WIDTH / 2)
    width = centre + max(to_right * (COLUMN_GAP + LABEL_WIDTH), LABEL_WIDTH / 2) + MARGIN
    height = HEADER_HEIGHT + 2 * MARGIN + rows * LINE_HEIGHT
    positions: dict[str, _NodePosition] = {}
    for column, nodes in columns.items():
        side = (column > 0) - (column < 0)
        x = (
            centre + side * (COLUMN_GAP + (abs(column) - 1) * (COLUMN_GAP + LABEL_WIDTH))
            if column
            else centre
        )
        top = HEADER_HEIGHT + MARGIN + (rows - len(nodes)) * LINE_HEIGHT / 2
        for index, node in enumerate(nodes):
            year = f" ({node.year})" if node.year else ""
            label = _shorten_label(tidy(node.label), MAX_LABEL_LENGTH - len(year)) + year
            positions[node.key] = _NodePosition(
                x, top + index * LINE_HEIGHT + LINE_HEIGHT / 2, column, label
            )
    svg = ET.Element(
        "svg",
        {
            "xmlns": _SVG,
            "viewBox": f"0 0 {width:.0f} {height:.0f}",
            "width": f"{width:.0f}",
            "height": f"{height:.0f}",
            "font-family": "system-ui, 'DejaVu Sans', Arial, sans-serif",
            "font-size": "12.5",
        },
    )
    ET.SubElement(svg, "title").text = tidy(graph.nodes[0].label)
    ET.SubElement(svg, "rect", {"width": "100%", "height": "100%", "fill": "#ffffff"})
    _define_arrows(svg)
    _draw_legend(svg, graph)
    lines = ET.SubElement(svg, "g", {"fill": "none", "stroke-width": "1.2", "opacity": "0.55"})
    for edge in graph.edges:
        _draw_edge(lines, edge, positions)
    for node in graph.nodes:
        _draw_node(svg, node, positions[node.key])
    if graph.truncated:
        _write_text(
            svg, MARGIN, height - 14, "Only a part: there is more around it.", fill="#7a8b99"
        )
    return ET.tostring(svg, encoding="unicode")


def _sort_into_columns(graph: DrawnGraph, distances: Sequence[int]) -> dict[int, list[DrawnNode]]:
    """Sort the nodes into columns: the middle node is in 0, nodes from which edges lead there are
    to the left, all others to the right."""
    centre = graph.nodes[0]
    distance_of = dict(zip((node.key for node in graph.nodes), distances, strict=True))
    side_of: dict[str, int] = {centre.key: 0}
    neighbours: dict[str, list[tuple[str, int]]] = {}
    for edge in graph.edges:
        neighbours.setdefault(edge.target, []).append((edge.source, 1))
        neighbours.setdefault(edge.source, []).append((edge.target, -1))
    for node in graph.nodes[1:]:
        directions = [
            side_of[neighbour] or direction
            for neighbour, direction in neighbours.get(node.key, ())
            if neighbour in side_of and distance_of[neighbour] == distance_of[node.key] - 1
        ]
        side_of[node.key] = 1 if not directions or max(directions) > 0 else -1
    columns: dict[int, list[DrawnNode]] = {}
    for node in graph.nodes:
        columns.setdefault(side_of[node.key] * distance_of[node.key], []).append(node)
    for nodes in columns.values():
        nodes.sort(
            key=lambda node: (_KIND_ORDER.index(node.kind), -node.cited, node.label, node.key)
        )
    return columns


def _draw_edge(lines: ET.Element, edge: DrawnEdge, positions: Mapping[str, _NodePosition]) -> None:
    start, end = positions[edge.source], positions[edge.target]
    colour, dashes = STROKES[edge.kind]
    if start.column == end.column:
        # An edge within a column bends towards the middle, where there are no labels.
        side = 1 if start.column < 0 else -1
        start_x, end_x = start.x + side * 9, end.x + side * 9
        bend = min(COLUMN_GAP * 0.8, 26 + abs(end.y - start.y) * 0.12)
        first_control, second_control = start_x + side * bend, end_x + side * bend
    else:
        leads_right = end.column > start.column
        start_x, end_x = (start.right, end.left) if leads_right else (start.left, end.right)
        first_control = second_control = (start_x + end_x) / 2
    path = f"M{start_x:.0f},{start.y:.0f} C{first_control:.0f},{start.y:.0f} "
    path += f"{second_control:.0f},{end.y:.0f} {end_x:.0f},{end.y:.0f}"
    attributes = {"d": path, "stroke": colour, "marker-end": f"url(#{edge.kind})"}
    if dashes:
        attributes["stroke-dasharray"] = dashes
    line = ET.SubElement(lines, "path", attributes)
    ET.SubElement(line, "title").text = f"{edge.kind.replace('_', ' ')} ({edge.weight:.3g})"


def _draw_node(svg: ET.Element, node: DrawnNode, position: _NodePosition) -> None:
    group = ET.SubElement(svg, "g")
    tooltip = f"{tidy(node.label)}\n{node.key}\ncited by {node.cited}"
    ET.SubElement(group, "title").text = tooltip
    radius = "5" if position.column else "7"
    dot = {"cx": f"{position.x:.0f}", "cy": f"{position.y:.0f}", "r": radius, "stroke": "#ffffff"}
    ET.SubElement(group, "circle", dot | {"fill": COLOURS[node.kind]})
    x, y = position.x, position.y + 4.5
    attributes: dict[str, str] = {}
    if position.column == 0:
        # The middle node's label is above all columns, as its dot has edges on both sides.
        y, attributes = HEADER_HEIGHT + MARGIN - 8, {"text-anchor": "middle", "font-weight": "bold"}
    elif position.column < 0:
        x, attributes = x - 11, {"text-anchor": "end"}
    else:
        x += 11
    # A white edge around the letters keeps them readable where lines cross them; drawn as a
    # separate text underneath, as not every program knows `paint-order`.
    _write_text(
        group,
        x,
        y,
        position.label,
        fill="#ffffff",
        stroke="#ffffff",
        **{"stroke-width": "4"},
        **attributes,
    )
    _write_text(group, x, y, position.label, fill="#1c2730", **attributes)


def _draw_legend(svg: ET.Element, graph: DrawnGraph) -> None:
    x = float(MARGIN)
    for kind in NodeKind:
        if any(node.kind is kind for node in graph.nodes):
            dot = {"cx": f"{x + 5:.0f}", "cy": "26", "r": "5", "fill": COLOURS[kind]}
            ET.SubElement(svg, "circle", dot)
            x = _write_text(svg, x + 16, 30, str(kind), fill="#1c2730") + 18
    x = float(MARGIN)
    for edge_kind in EdgeKind:
        if any(edge.kind is edge_kind for edge in graph.edges):
            colour, dashes = STROKES[edge_kind]
            line = {"d": f"M{x:.0f},50 h24", "stroke": colour, "stroke-width": "1.6"}
            if dashes:
                line["stroke-dasharray"] = dashes
            ET.SubElement(svg, "path", line | {"marker-end": f"url(#{edge_kind})"})
            x = _write_text(svg, x + 34, 54, edge_kind.replace("_", " "), fill="#1c2730") + 18


def _define_arrows(svg: ET.Element) -> None:
    definitions = ET.SubElement(svg, "defs")
    for kind, (colour, _) in STROKES.items():
        shape = {"viewBox": "0 0 8 8", "refX": "7", "refY": "4", "orient": "auto"}
        size = {"id": str(kind), "markerWidth": "7", "markerHeight": "7"}
        marker = ET.SubElement(definitions, "marker", size | shape)
        ET.SubElement(marker, "path", {"d": "M0,0 L8,4 L0,8 z", "fill": colour})


def _write_text(parent: ET.Element, x: float, y: float, text: str, **attributes: str) -> float:
    """Write a text. Returns the approximate x of its end."""
    position = {"x": f"{x:.0f}", "y": f"{y:.1f}"}
    ET.SubElement(parent, "text", position | attributes).text = text
    return x + 8 * len(text)


def _text_width(text: str) -> int:
    """Return the width of a text in letters; a letter of East Asia counts as two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _shorten_label(label: str, width: int) -> str:
    """Cut a label to a width in letters."""
    if _text_width(label) <= width:
        return label
    letters = label[: width - 1]
    while _text_width(letters) >= width:
        letters = letters[:-1]
    return letters.rstrip() + "…"
