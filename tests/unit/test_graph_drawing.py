"""Pictures of the graph show all labels, as text, and no label covers another."""

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


def make_node(
    key: str, label: str, kind: NodeKind = NodeKind.WORK, year: int | None = None
) -> GraphNode:
    return GraphNode(key, kind, label, year, "reference", 0)


def make_edge(source: str, target: str, kind: EdgeKind = EdgeKind.CITES) -> GraphEdge:
    return GraphEdge(source, target, kind, 1.0, "reference")


def draw_tree(neighbourhood: Neighbourhood) -> ET.Element:
    return ET.fromstring(draw(neighbourhood, neighbourhood.distances))


def read_labels(svg: ET.Element) -> list[tuple[float, float, str]]:
    """Return the position and the text of each node's label."""
    labels = [text for text in svg.iter(f"{SVG}text") if text.get("fill") == "#1c2730"]
    groups = {text for group in svg.iter(f"{SVG}g") for text in group.iter(f"{SVG}text")}
    return [
        (float(text.get("x", 0)), float(text.get("y", 0)), text.text or "")
        for text in labels
        if text in groups
    ]


def test_sources_of_edges_are_left_and_targets_are_right():
    nodes = [
        make_node("c", "Middle"),
        make_node("in", "Citing"),
        make_node("out", "Cited"),
        make_node("far", "Further"),
    ]
    edges = [
        make_edge("in", "c"),
        make_edge("c", "out"),
        make_edge("out", "far"),
        make_edge("in", "out"),
    ]
    svg = draw_tree(Neighbourhood(nodes, [0, 1, 1, 2], edges, truncated=False))
    x_of = {text: x for x, _, text in read_labels(svg)}
    assert x_of["Citing"] < x_of["Middle"] < x_of["Cited"] < x_of["Further"]
    assert len(list(svg.iter(f"{SVG}circle"))) == 4 + 1  # one in the legend
    assert len([path for path in svg.iter(f"{SVG}path") if "C" in (path.get("d") or "")]) == 4


def test_hostile_labels_stay_text_and_have_a_line_each():
    hostile_text = '</text><script>alert("x")</script>&\x00\u202e'
    neighbours = [
        make_node(f"n{n}", hostile_text + "潮" * n + "x" * n, year=2000) for n in range(60)
    ]
    nodes = [make_node("c", hostile_text), *neighbours]
    edges = [make_edge("c", each.key) for each in neighbours]
    svg = draw_tree(Neighbourhood(nodes, [0] + [1] * 60, edges, truncated=True))
    assert not list(svg.iter(f"{SVG}script"))
    labels = read_labels(svg)
    assert all(
        len(text) <= MAX_LABEL_LENGTH and text.startswith("</text><script>")
        for _, _, text in labels
    )
    assert all(text.endswith("(2000)") for _, _, text in labels[1:])
    heights = sorted(y for _, y, _ in labels[1:])
    assert min(b - a for a, b in pairwise(heights)) >= LINE_HEIGHT - 1
    assert "Only a part" in ET.tostring(svg, encoding="unicode")


def test_a_node_without_edges_can_be_drawn():
    svg = draw_tree(Neighbourhood([make_node("c", "")], [0], [], truncated=False))
    assert len(list(svg.iter(f"{SVG}circle"))) == 2
