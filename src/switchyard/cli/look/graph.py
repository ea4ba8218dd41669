"""`jobctl graph`: works, who wrote them, what cites what."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.broker.wording import counted
from switchyard.cli.base.calling import calling
from switchyard.cli.base.common import load_settings, open_ledger, run
from switchyard.cli.base.errors import WrongUsage
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
from switchyard.services.records.graph import Direction, EdgeKind

if TYPE_CHECKING:
    from switchyard.api.models import graph as models
    from switchyard.services.records.graph import Neighbourhood

app = typer.Typer(
    no_args_is_help=True,
    help="The knowledge graph: show, neighbours, path, cocited, coupled, cited, draw, export.",
)


class CitedName(StrEnum):
    """What can be cited."""

    DOCUMENT = "document"
    WORK = "work"


NodeArgument = Annotated[
    str,
    typer.Argument(metavar="NODE", help="A key such as doi:10.1000/182, or a document's id."),
]
KindOption = Annotated[
    list[EdgeKind] | None, typer.Option("--kind", help="Only such edges; repeatable.")
]
WayOption = Annotated[Direction, typer.Option("--direction", help="Which edges are followed.")]


@app.command()
def show(
    node: Annotated[
        str | None,
        typer.Argument(metavar="NODE", help="A key, or a document's id; none: the whole graph."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a node with all its names; without one, how large the graph is."""
    with calling() as client:
        if node is None:
            _print_summary(client.graph(), as_json)
            return
        found = client.graph_node(node)
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    print_rows(
        (
            ("Node", found.key),
            ("Kind", found.kind),
            ("Label", found.label),
            ("Year", str(found.year or "")),
            ("Told by", found.told_by),
            ("Cited", str(found.cited)),
            ("Rank", "" if found.rank is None else f"{found.rank:.3g}"),
            ("Community", "" if found.community is None else str(found.community)),
            *(("Document", each) for each in found.documents),
            *(("Key", each) for each in found.keys),
        )
    )


@app.command()
def neighbours(
    node: NodeArgument,
    kind: KindOption = None,
    direction: WayOption = Direction.BOTH,
    depth: Annotated[int, typer.Option(min=1, max=4, help="Edges away at most.")] = 1,
    limit: Annotated[int, typer.Option(min=1, max=500, help="At most so many.")] = 100,
    as_json: JsonOption = False,
) -> None:
    """List what hangs together with a node: what it cites, who cites it, who wrote it."""
    from itertools import islice

    kinds = kind or ()
    with calling() as client:
        if depth > 1:
            near = client.neighbourhood(
                node, depth=depth, kinds=kinds, direction=direction, limit=limit
            )
            _print_near(near, as_json)
            return
        listing = client.neighbours(node, kinds=kinds, direction=direction)
        found = list(islice(listing, limit + 1))
    more, found = len(found) > limit, found[:limit]
    if as_json:
        print_json([each.model_dump(mode="json") for each in found])
        return
    if not found:
        say("There is nothing that hangs together with it so.")
        return
    rows = table("", "EDGE", "WEIGHT", "NODE", "YEAR", "LABEL", flexible=("NODE", "LABEL"))
    for each in found:
        arrow = "→" if each.direction == "out" else "←"
        shown = (f"{each.edge.weight:.3g}", each.node.key, str(each.node.year or ""))
        add_row(rows, arrow, each.edge.kind, *map(cell, shown), cell(each.node.label))
    console().print(rows)
    if more:
        say(f"The first {limit}; more with --limit or --kind.")


@app.command()
def path(
    start: NodeArgument,
    end: NodeArgument,
    kind: KindOption = None,
    direction: WayOption = Direction.BOTH,
    longest: Annotated[int, typer.Option(min=1, max=8, help="Edges of a way at most.")] = 6,
    limit: Annotated[int, typer.Option(min=1, max=10, help="At most so many ways.")] = 3,
    as_json: JsonOption = False,
) -> None:
    """Show the shortest ways from one node to another."""
    kinds = kind or ()
    with calling() as client:
        found = client.graph_paths(
            start, end, kinds=kinds, direction=direction, longest=longest, limit=limit
        )
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    out = console()
    for number, way in enumerate(found.paths):
        if number:
            out.print()
        out.print(_named(way.nodes[0]))
        for node, edge in zip(way.nodes[1:], way.edges, strict=True):
            arrow = f"─ {edge.kind} →" if edge.target == node.key else f"← {edge.kind} ─"
            out.print(f"  {arrow} {_named(node)}")
    if not found.paths:
        say(f"There is no way of {longest} edges or less.")
    if not found.complete:
        say("Not all was searched: too much hangs together there. --kind leaves something out.")


@app.command()
def cocited(
    node: NodeArgument,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List works that are cited together with one, by how many."""
    with calling() as client:
        _print_related(client.cocited(node, limit=limit), "CITE BOTH", as_json)


@app.command()
def coupled(
    node: NodeArgument,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List works that cite what one cites, by how much of it."""
    with calling() as client:
        _print_related(client.coupled(node, limit=limit), "BOTH CITE", as_json)


@app.command()
def cited(
    kind: Annotated[
        CitedName | None, typer.Option(help="Only documents, or only works that are none.")
    ] = None,
    community: Annotated[int | None, typer.Option(min=0, help="Only of this community.")] = None,
    by_rank: Annotated[
        bool, typer.Option("--by-rank", help="By PageRank in the place of numbers.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List the works that most others cite."""
    from itertools import islice

    with calling() as client:
        listing = client.most_cited(
            kind=None if kind is None else kind.value, community=community, by_rank=by_rank
        )
        found = list(islice(listing, limit))
    if as_json:
        print_json([each.model_dump(mode="json") for each in found])
        return
    if not found:
        say(
            "Nothing has a rank yet: jobctl publish maintenance.recompute_graph --payload '{}'"
            if by_rank and community is None
            else "No works."
        )
        return
    columns = ("CITED", "RANK", "COMMUNITY", "YEAR", "NODE", "LABEL")
    rows = table(*columns, flexible=("NODE", "LABEL"), right=("CITED", "RANK", "COMMUNITY"))
    for each in found:
        rank = "" if each.rank is None else f"{each.rank:.2g}"
        group = "" if each.community is None else str(each.community)
        shown = (each.key, each.label)
        add_row(rows, str(each.cited), rank, group, str(each.year or ""), *map(cell, shown))
    console().print(rows)


@app.command()
def draw(
    node: NodeArgument,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="Its name ends with .svg.")
    ],
    kind: KindOption = None,
    direction: WayOption = Direction.BOTH,
    depth: Annotated[int, typer.Option(min=1, max=4, help="Edges away at most.")] = 1,
    limit: Annotated[int, typer.Option(min=1, max=500, help="At most so many nodes.")] = 60,
) -> None:
    """Draw what is around a node, as an SVG picture."""
    from switchyard.services.graph.drawing import draw as drawn

    if out.suffix.lower() != ".svg":
        raise WrongUsage(f"{out.name}: its name must end with .svg")
    kinds = kind or ()
    with calling() as client:
        found = client.neighbourhood(
            node, depth=depth, kinds=kinds, direction=direction, limit=limit
        )
        out.write_text(drawn(_as_records(found)), encoding="utf-8")
    say(f"{out}: {counted(len(found.nodes), 'node')}, {counted(len(found.edges), 'edge')}")


@app.command()
def export(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Its name ends with .graphml or .parquet.")
    ],
) -> None:
    """Write the whole graph as GraphML, or its edges as Parquet.

    It reads the ledger itself. The file is there as a whole, or not at all.
    """
    from switchyard.services.graph.exporting import export as exported

    settings = load_settings()

    async def work() -> tuple[int, int]:
        async with open_ledger(settings) as ledger:
            return await exported(ledger, file)

    nodes, edges = run(work())
    say(
        f"{file}: {counted(nodes, 'node')}, {counted(edges, 'edge')}"
        if nodes
        else f"{file}: {counted(edges, 'edge')}"
    )


def _as_records(view: models.NeighbourhoodView) -> Neighbourhood:
    from switchyard.services.records.graph import GraphEdge, GraphNode, Neighbourhood

    nodes = [
        GraphNode(
            key=each.key,
            kind=each.kind,
            label=each.label,
            year=each.year,
            told_by=each.told_by,
            cited=each.cited,
        )
        for each in view.nodes
    ]
    return Neighbourhood(
        nodes=nodes,
        distances=[each.distance for each in view.nodes],
        edges=[GraphEdge(**each.model_dump()) for each in view.edges],
        truncated=view.truncated,
    )


def _print_summary(found: models.GraphView, as_json: bool) -> None:
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    ranking = found.ranking
    print_rows(
        (
            *((f"Nodes, {kind}", str(count)) for kind, count in sorted(found.nodes.items())),
            *((f"Edges, {kind}", str(count)) for kind, count in sorted(found.edges.items())),
            ("Ranked", "" if ranking is None else ranking.finished_at.isoformat(" ", "seconds")),
            ("Communities", "" if ranking is None else str(ranking.communities)),
        )
    )
    if ranking is None:
        say("Not ranked yet: jobctl publish maintenance.recompute_graph --payload '{}'")


def _print_near(found: models.NeighbourhoodView, as_json: bool) -> None:
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    rows = table("AWAY", "KIND", "NODE", "YEAR", "LABEL", flexible=("NODE", "LABEL"))
    for each in found.nodes:
        shown = (each.key, str(each.year or ""), each.label)
        add_row(rows, str(each.distance), each.kind, *map(cell, shown))
    console().print(rows)
    if found.truncated:
        say("Not all of it; more with --limit, less with --kind.")


def _print_related(found: models.RelatedList, heading: str, as_json: bool) -> None:
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    if not found.works:
        say("No works.")
        return
    rows = table(heading, "NODE", "YEAR", "LABEL", flexible=("NODE", "LABEL"), right=(heading,))
    for each in found.works:
        shown = (each.node.key, str(each.node.year or ""), each.node.label)
        add_row(rows, str(each.shared), *map(cell, shown))
    console().print(rows)
    if found.sampled:
        say("So much is cited that only a part was looked at.")


def _named(node: models.NodeView) -> str:
    year = f" ({node.year})" if node.year else ""
    return f"[bold]{cell(node.label)}[/]{year}  [dim]{cell(node.key)}[/]"
