"""`jobctl graph`: works, who wrote them, what cites what."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.broker.wording import pluralize
from switchyard.cli.base.api_client import api_client
from switchyard.cli.base.common import load_settings, open_ledger, run
from switchyard.cli.base.errors import WrongUsage, writing
from switchyard.cli.base.output import (
    JsonOption,
    add_row,
    cell,
    console,
    print_json,
    print_rows,
    say,
    table,
)
from switchyard.cli.base.shared_options import LimitOption
from switchyard.services.pipeline.records.graph import (
    MAX_DEPTH,
    MAX_NEARBY_NODES,
    MAX_PATH_EDGES,
    MAX_PATHS,
    Direction,
    EdgeKind,
)

if TYPE_CHECKING:
    from switchyard.api.models import graph as models

app = typer.Typer(
    no_args_is_help=True,
    help="The knowledge graph: show, neighbours, path, cocited, coupled, cited, draw, export.",
)


class CitedKind(StrEnum):
    """Kinds of nodes that can be cited."""

    DOCUMENT = "document"
    WORK = "work"


NodeArgument = Annotated[
    str,
    typer.Argument(
        metavar="NODE", help="Key of the node, for example doi:10.1000/182, or a document id."
    ),
]
KindOption = Annotated[
    list[EdgeKind] | None, typer.Option("--kind", help="Only edges of this kind; repeatable.")
]
DirectionOption = Annotated[
    Direction, typer.Option("--direction", help="Direction in which edges are followed.")
]
DepthOption = Annotated[
    int, typer.Option("--depth", min=1, max=MAX_DEPTH, help="Maximum distance in edges.")
]


@app.command()
def show(
    node: Annotated[
        str | None,
        typer.Argument(
            metavar="NODE",
            help="Key of the node, or a document id. Default: numbers of the whole graph.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a node of the graph with all its keys; without NODE, the size of the graph."""
    with api_client() as client:
        if node is None:
            _print_summary(client.graph(), as_json)
            return
        graph_node = client.graph_node(node)
    if as_json:
        print_json(graph_node)
        return
    print_rows(
        (
            ("Node", graph_node.key),
            ("Kind", graph_node.kind),
            ("Label", graph_node.label),
            ("Year", str(graph_node.year or "")),
            ("Provenance", graph_node.provenance),
            ("Cited", str(graph_node.cited)),
            ("Rank", "" if graph_node.rank is None else f"{graph_node.rank:.3g}"),
            ("Community", "" if graph_node.community is None else str(graph_node.community)),
            *(("Document", each) for each in graph_node.documents),
            *(("Key", each) for each in graph_node.keys),
        )
    )


@app.command()
def neighbours(
    node: NodeArgument,
    kind: KindOption = None,
    direction: DirectionOption = Direction.BOTH,
    depth: DepthOption = 1,
    limit: Annotated[
        int, typer.Option(min=1, max=MAX_NEARBY_NODES, help="Maximum number of results.")
    ] = 100,
    as_json: JsonOption = False,
) -> None:
    """List the neighbours of a node: works it cites, works that cite it, its authors.

    Example:

    ```
    jobctl graph neighbours arxiv:1706.03762 --kind cites --direction in
    ```
    """
    from itertools import islice

    kinds = kind or ()
    with api_client() as client:
        if depth > 1:
            near = client.neighbourhood(
                node, depth=depth, kinds=kinds, direction=direction, limit=limit
            )
            _print_neighbourhood(near, as_json)
            return
        listing = client.neighbours(node, kinds=kinds, direction=direction)
        near_nodes = list(islice(listing, limit + 1))
    has_more, near_nodes = len(near_nodes) > limit, near_nodes[:limit]
    if as_json:
        print_json(near_nodes)
        return
    if not near_nodes:
        say("No neighbours found.")
        return
    rows = table("", "EDGE", "WEIGHT", "NODE", "YEAR", "LABEL", flexible=("NODE", "LABEL"))
    for each in near_nodes:
        arrow = "→" if each.direction == "out" else "←"
        weight = f"{each.edge.weight:.3g}"
        add_row(rows, arrow, each.edge.kind, weight, *_node_cells(each.node))
    console().print(rows)
    if has_more:
        say(f"The first {limit}; more with --limit or --kind.")


@app.command()
def path(
    start: NodeArgument,
    end: NodeArgument,
    kind: KindOption = None,
    direction: DirectionOption = Direction.BOTH,
    longest: Annotated[
        int, typer.Option(min=1, max=MAX_PATH_EDGES, help="Maximum length of a path in edges.")
    ] = 6,
    limit: Annotated[int, typer.Option(min=1, max=MAX_PATHS, help="Maximum number of paths.")] = 3,
    as_json: JsonOption = False,
) -> None:
    """List the shortest paths between two nodes.

    Example:

    ```
    jobctl graph path ID doi:10.1145/359545.359563
    ```
    """
    kinds = kind or ()
    with api_client() as client:
        paths = client.graph_paths(
            start, end, kinds=kinds, direction=direction, longest=longest, limit=limit
        )
    if as_json:
        print_json(paths)
        return
    terminal = console()
    for number, found_path in enumerate(paths.paths):
        if number:
            terminal.print()
        terminal.print(_describe_node(found_path.nodes[0]))
        for node, edge in zip(found_path.nodes[1:], found_path.edges, strict=True):
            arrow = f"─ {edge.kind} →" if edge.target == node.key else f"← {edge.kind} ─"
            terminal.print(f"  {arrow} {_describe_node(node)}")
    if not paths.paths:
        say(f"No path of at most {longest} edges found.")
    if not paths.complete:
        say("The search was cut short: there are too many edges. Narrow it with --kind.")


@app.command()
def cocited(
    node: NodeArgument,
    limit: LimitOption = 20,
    as_json: JsonOption = False,
) -> None:
    """List works that are cited together with a work, most frequent first."""
    with api_client() as client:
        _print_related(client.cocited(node, limit=limit), "CITE BOTH", as_json)


@app.command()
def coupled(
    node: NodeArgument,
    limit: LimitOption = 20,
    as_json: JsonOption = False,
) -> None:
    """List works that share references with a work, by number of shared references."""
    with api_client() as client:
        _print_related(client.coupled(node, limit=limit), "BOTH CITE", as_json)


@app.command()
def cited(
    kind: Annotated[
        CitedKind | None,
        typer.Option(help="Only documents, or only works that are not stored as a document."),
    ] = None,
    community: Annotated[
        int | None, typer.Option(min=0, help="Only works of this community.")
    ] = None,
    by_rank: Annotated[
        bool,
        typer.Option("--by-rank", help="Order by PageRank instead of the number of citations."),
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of results.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List the most cited works."""
    from itertools import islice

    with api_client() as client:
        listing = client.most_cited(
            kind=None if kind is None else kind.value, community=community, by_rank=by_rank
        )
        works = list(islice(listing, limit))
    if as_json:
        print_json(works)
        return
    if not works:
        say(
            "Nothing has a rank yet: jobctl publish maintenance.recompute_graph --payload '{}'"
            if by_rank and community is None
            else "No works."
        )
        return
    columns = ("CITED", "RANK", "COMMUNITY", "YEAR", "NODE", "LABEL")
    rows = table(*columns, flexible=("NODE", "LABEL"), right=("CITED", "RANK", "COMMUNITY"))
    for each in works:
        rank = "" if each.rank is None else f"{each.rank:.2g}"
        community_number = "" if each.community is None else str(each.community)
        key, year, label = _node_cells(each)
        add_row(rows, str(each.cited), rank, community_number, year, key, label)
    console().print(rows)


@app.command()
def draw(
    node: NodeArgument,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FILE", help="Output file; its name must end with .svg."
        ),
    ],
    kind: KindOption = None,
    direction: DirectionOption = Direction.BOTH,
    depth: DepthOption = 1,
    limit: Annotated[
        int, typer.Option(min=1, max=MAX_NEARBY_NODES, help="Maximum number of nodes.")
    ] = 60,
) -> None:
    """Draw the neighbourhood of a node as an SVG image."""
    from switchyard.services.pipeline.graph.svg import draw as draw_svg

    if out.suffix.lower() != ".svg":
        raise WrongUsage(f"{out.name}: its name must end with .svg")
    kinds = kind or ()
    with api_client() as client:
        near = client.neighbourhood(
            node, depth=depth, kinds=kinds, direction=direction, limit=limit
        )
        with writing(out):
            out.write_text(draw_svg(near, [each.distance for each in near.nodes]), encoding="utf-8")
    say(f"{out}: {pluralize(len(near.nodes), 'node')}, {pluralize(len(near.edges), 'edge')}")


@app.command()
def export(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Output file; its name must end with .graphml or .parquet."
        ),
    ],
) -> None:
    """Write the whole graph as GraphML, or its edges as Parquet.

    Reads the ledger directly, not over HTTP. The file appears only when it is complete.
    """
    from switchyard.services.pipeline.graph.exports import export as write_graph

    settings = load_settings()

    async def work() -> tuple[int, int]:
        async with open_ledger(settings) as ledger:
            with writing(file):
                return await write_graph(ledger, file)

    nodes, edges = run(work())
    counts = [pluralize(edges, "edge")]
    if nodes:  # Parquet has none
        counts.insert(0, pluralize(nodes, "node"))
    say(f"{file}: {', '.join(counts)}")


def _print_summary(summary: models.GraphView, as_json: bool) -> None:
    if as_json:
        print_json(summary)
        return
    ranking = summary.ranking
    print_rows(
        (
            *((f"Nodes, {kind}", str(count)) for kind, count in sorted(summary.nodes.items())),
            *((f"Edges, {kind}", str(count)) for kind, count in sorted(summary.edges.items())),
            ("Ranked", "" if ranking is None else ranking.finished_at.isoformat(" ", "seconds")),
            ("Communities", "" if ranking is None else str(ranking.communities)),
        )
    )
    if ranking is None:
        say("Not ranked yet: jobctl publish maintenance.recompute_graph --payload '{}'")


def _print_neighbourhood(near: models.NeighbourhoodView, as_json: bool) -> None:
    if as_json:
        print_json(near)
        return
    rows = table("AWAY", "KIND", "NODE", "YEAR", "LABEL", flexible=("NODE", "LABEL"))
    for each in near.nodes:
        add_row(rows, str(each.distance), each.kind, *_node_cells(each))
    console().print(rows)
    if near.truncated:
        say("Only a part is shown: raise --limit, or narrow it with --kind.")


def _print_related(related: models.RelatedList, heading: str, as_json: bool) -> None:
    if as_json:
        print_json(related)
        return
    if not related.works:
        say("No works.")
        return
    rows = table(heading, "NODE", "YEAR", "LABEL", flexible=("NODE", "LABEL"), right=(heading,))
    for each in related.works:
        add_row(rows, str(each.shared), *_node_cells(each.node))
    console().print(rows)
    if related.sampled:
        say("Only a sample was examined: there are too many citations.")


def _node_cells(node: models.NodeView) -> tuple[str, str, str]:
    """Return the cells of a node in a table: its key, year and label."""
    return cell(node.key), str(node.year or ""), cell(node.label)


def _describe_node(node: models.NodeView) -> str:
    year = f" ({node.year})" if node.year else ""
    return f"[bold]{cell(node.label)}[/]{year}  [dim]{cell(node.key)}[/]"
