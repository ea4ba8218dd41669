"""Pictures of the graph: everything is in them, as text, and no label covers another."""

from itertools import pairwise
from xml.etree import ElementTree as ET

from switchyard.services.pipeline.graph.svg import LINE_HEIGHT, MAX_LABEL_LENGTH, draw
from switchyard.services.pipeline.records.graph import (
    EdgeKind,
    GraphEdge,
    GraphNode,
    Neighbourhood,
    NodeKind,
)

SVG = "{http://www.w3.org/2000/svg}"


def node(
    key: str, label: str, kind: NodeKind = NodeKind.WORK, year: int | None = None
) -> GraphNode:
    return GraphNode(key, kind, label, year, "reference", 0)


def edge(source: str, target: str, kind: EdgeKind = EdgeKind.CITES) -> GraphEdge:
    return GraphEdge(source, target, kind, 1.0, "reference")


def drawn(around: Neighbourhood) -> ET.Element:
    return ET.fromstring(draw(around, around.distances))


def labels(svg: ET.Element) -> list[tuple[float, float, str]]:
    """Return the labels of nodes, with their places."""
    labels_shown = [text for text in svg.iter(f"{SVG}text") if text.get("fill") == "#1c2730"]
    groups = {text for group in svg.iter(f"{SVG}g") for text in group.iter(f"{SVG}text")}
    return [
        (float(text.get("x", 0)), float(text.get("y", 0)), text.text or "")
        for text in labels_shown
        if text in groups
    ]


def test_sources_of_edges_are_left_and_targets_are_right():
    nodes = [
        node("c", "Middle"),
        node("in", "Citing"),
        node("out", "Cited"),
        node("far", "Further"),
    ]
    edges = [edge("in", "c"), edge("c", "out"), edge("out", "far"), edge("in", "out")]
    svg = drawn(Neighbourhood(nodes, [0, 1, 1, 2], edges, truncated=False))
    places = {text: x for x, _, text in labels(svg)}
    assert places["Citing"] < places["Middle"] < places["Cited"] < places["Further"]
    assert len(list(svg.iter(f"{SVG}circle"))) == 4 + 1  # one in the legend
    assert len([path for path in svg.iter(f"{SVG}path") if "C" in (path.get("d") or "")]) == 4


def test_foreign_labels_stay_text_and_have_a_line_each():
    evil = '</text><script>alert("x")</script>&\x00\u202e'
    others = [node(f"n{n}", evil + "潮" * n + "x" * n, year=2000) for n in range(60)]
    nodes = [node("c", evil), *others]
    edges = [edge("c", each.key) for each in others]
    svg = drawn(Neighbourhood(nodes, [0] + [1] * 60, edges, truncated=True))
    assert not list(svg.iter(f"{SVG}script"))
    labels_shown = labels(svg)
    assert all(
        len(text) <= MAX_LABEL_LENGTH and text.startswith("</text><script>")
        for _, _, text in labels_shown
    )
    assert all(text.endswith("(2000)") for _, _, text in labels_shown[1:])
    heights = sorted(y for _, y, _ in labels_shown[1:])
    assert min(b - a for a, b in pairwise(heights)) >= LINE_HEIGHT - 1
    assert "Only a part" in ET.tostring(svg, encoding="unicode")


def test_a_node_alone_is_a_picture_too():
    svg = drawn(Neighbourhood([node("c", "")], [0], [], truncated=False))
    assert len(list(svg.iter(f"{SVG}circle"))) == 2
