"""Write what each document adds to the graph. Writing a document again replaces all that it
added."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from switchyard.services.engine.ledger.sql.dialect import among, insert_into
from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.pipeline.ledger.graph_nodes import GraphNodes
from switchyard.services.pipeline.ledger.pipeline_tables import (
    documents,
    graph_documents,
    graph_edges,
    graph_nodes,
)
from switchyard.services.pipeline.records.graph import EdgeKind, NewEdge, NodeDescription, NodeKind

_WORK_ITSELF = 0
"""Owner of the edges of a work that is only cited."""


class GraphWrites(Repository):
    """Writes documents into the graph. All methods raise LedgerUnavailable when the database is
    unreachable."""

    @write
    def put_in_graph(
        self,
        connection: Connection,
        document: NodeDescription,
        edges: Mapping[EdgeKind, Sequence[NewEdge]],
    ) -> None:
        """Write a document into the graph as it is described, with exactly these edges of these
        kinds; its edges of other kinds stay. Repeating it changes nothing.

        Other nodes that are described as the same work are merged with it, with all their edges.
        Raises ValueError for a description without a document."""
        document_id = document.document_id
        if document_id is None:
            raise ValueError("describe a document: one with a document_id")
        edges_by_kind = {str(kind): each for kind, each in edges.items()}
        new_edges = [edge for each in edges_by_kind.values() for edge in each]
        nodes = GraphNodes(connection)
        targets = [edge.target for edge in new_edges]
        nodes.load([document, *targets, *(edge.target for each in targets for edge in each.edges)])
        owner, source, unreferenced_candidates = _place_document(
            connection, nodes, document, document_id
        )
        rows: dict[tuple[str, int], dict[str, Any]] = {}
        edges_to_nodes = [
            (kind, edge, _find_target(connection, nodes, edge.target))
            for kind, each in edges_by_kind.items()
            for edge in each
        ]
        _update_works(connection, nodes)
        nodes.flush()
        source = nodes.current_id(source)
        for kind, edge, node_id in edges_to_nodes:
            target = nodes.current_id(node_id)
            existing_row = rows.get((kind, target))
            if target != source and (existing_row is None or existing_row["weight"] < edge.weight):
                rows[kind, target] = _edge_row(source, kind, target, owner, edge)
        cited_before = _cited_nodes(connection, source)
        condition = (graph_edges.c.source == source) & graph_edges.c.kind.in_(list(edges_by_kind))
        removed = connection.scalars(
            delete(graph_edges)
            .where(condition, graph_edges.c.owner == owner)
            .returning(graph_edges.c.target)
        )
        unreferenced_candidates |= set(removed)
        if rows:
            connection.execute(insert(graph_edges), list(rows.values()))
            unreferenced_candidates |= _drop_edges_by_others(
                connection, source, {kind for kind, _ in rows}
            )
        _adjust_citations(connection, cited_before, _cited_nodes(connection, source))
        nodes.drop_unreferenced(unreferenced_candidates - {target for _, target in rows})

    @write
    def drop_from_graph(self, connection: Connection, document_id: str) -> bool:
        """Delete a document's edges from the graph, and its node unless others cite the work.
        Returns False if the document was not in the graph."""
        nodes = GraphNodes(connection)
        deleted = connection.execute(
            delete(graph_documents)
            .where(graph_documents.c.document_id == document_id)
            .returning(graph_documents.c.id, graph_documents.c.node_id)
        ).one_or_none()
        if deleted is None:
            return False
        cited_before = _cited_nodes(connection, deleted.node_id)
        removed = connection.scalars(
            delete(graph_edges)
            .where(graph_edges.c.source == deleted.node_id, graph_edges.c.owner == deleted.id)
            .returning(graph_edges.c.target)
        )
        unreferenced_candidates = {deleted.node_id, *removed}
        _adjust_citations(connection, cited_before, _cited_nodes(connection, deleted.node_id))
        _demote_to_work(connection, deleted.node_id)
        nodes.drop_unreferenced(unreferenced_candidates)
        return True

    @read
    def graph_strays(self, connection: Connection) -> list[str]:
        """List up to 100 documents in the graph that were deleted from the ledger."""
        in_ledger = select(documents.c.id).where(documents.c.id == graph_documents.c.document_id)
        query = select(graph_documents.c.document_id).where(~in_ledger.exists()).limit(100)
        return list(connection.scalars(query))


def _place_document(
    connection: Connection, nodes: GraphNodes, document: NodeDescription, document_id: str
) -> tuple[int, int, set[int]]:
    """Find or move a document's node. Returns the document's owner id, the node, and nodes that may
    have become unreferenced."""
    row = _document_row(connection, document_id)
    if row is None:
        node_id = nodes.find(document)
        return _add_document(connection, nodes, document_id, node_id), node_id, set()
    owner, old_node_id = row
    node_id = nodes.find(document, preferred=old_node_id)
    old_node_id = nodes.current_id(old_node_id)
    if node_id == old_node_id:
        return owner, node_id, set()
    # The document proves to be another work: it moves there, with its edges.
    nodes.flush()
    condition = graph_documents.c.id == owner
    connection.execute(update(graph_documents).where(condition).values(node_id=node_id))
    nodes.node(old_node_id).documents.discard(document_id)
    nodes.node(node_id).documents.add(document_id)
    is_own_edge = (graph_edges.c.source == old_node_id) & (graph_edges.c.owner == owner)
    connection.execute(delete(graph_edges).where(is_own_edge, graph_edges.c.target == node_id))
    connection.execute(update(graph_edges).where(is_own_edge).values(source=node_id))
    nodes.count_citations(_cited_nodes(connection, node_id) | {node_id})
    if not nodes.node(old_node_id).documents:
        nodes.change(old_node_id, kind=NodeKind.WORK)
    return owner, node_id, {old_node_id}


def _find_target(connection: Connection, nodes: GraphNodes, target: NodeDescription) -> int:
    """Return the node of an edge's target; a target that is a document becomes that document's
    node."""
    if target.document_id is None:
        return nodes.find(target)
    row = _document_row(connection, target.document_id)
    if row is not None:
        return nodes.find(target, preferred=row[1])
    node_id = nodes.find(target)
    _add_document(connection, nodes, target.document_id, node_id)
    return node_id


def _document_row(connection: Connection, document_id: str) -> tuple[int, int] | None:
    query = select(graph_documents.c.id, graph_documents.c.node_id)
    row = connection.execute(
        query.where(graph_documents.c.document_id == document_id)
    ).one_or_none()
    return None if row is None else (row.id, row.node_id)


def _add_document(connection: Connection, nodes: GraphNodes, document_id: str, node_id: int) -> int:
    owner = nodes.new_id()
    node = nodes.node(node_id)
    node.documents.add(document_id)
    row = {"id": owner, "document_id": document_id, "node_id": node.id}
    connection.execute(insert(graph_documents).values(row))
    return owner


def _update_works(connection: Connection, nodes: GraphNodes) -> None:
    """Write others' descriptions of works where they are better than the present ones. For a work
    that is a document, write only edges of kinds that the document does not have itself. All works
    are written at once, as a document cites dozens."""
    updates = []
    while nodes.better_descriptions:
        node_id, description = nodes.better_descriptions.popitem()
        updates.append(
            (node_id, description, [(edge, nodes.find(edge.target)) for edge in description.edges])
        )
    if not updates:
        return
    nodes.flush()
    rows: dict[int, list[dict[str, Any]]] = {}
    for node_id, description, targets in updates:
        source = nodes.current_id(node_id)
        if nodes.node(source).documents:
            own_kinds, edges_by_others = _own_kinds(connection, source)
            if edges_by_others and description.provenance == "reference":
                continue
            targets = [each for each in targets if each[0].kind not in own_kinds]
            if not targets:
                continue
        rows[source] = [
            _edge_row(source, edge.kind, nodes.current_id(target), _WORK_ITSELF, edge)
            for edge, target in targets
        ]
    if not rows:
        return
    old_edges = delete(graph_edges).where(
        among(connection, graph_edges.c.source, rows), graph_edges.c.owner == _WORK_ITSELF
    )
    removed = set(connection.scalars(old_edges.returning(graph_edges.c.target)))
    statement = insert_into(connection, graph_edges).on_conflict_do_nothing()
    connection.execute(statement, [row for each in rows.values() for row in each])
    nodes.drop_unreferenced(removed)


def _own_kinds(connection: Connection, source: int) -> tuple[set[str], bool]:
    """Return the kinds of edges that a document has itself, and whether others describe some."""
    query = select(graph_edges.c.kind, graph_edges.c.owner).where(graph_edges.c.source == source)
    rows = connection.execute(query.distinct()).all()
    edges_by_others = any(row.owner == _WORK_ITSELF for row in rows)
    return {row.kind for row in rows if row.owner != _WORK_ITSELF}, edges_by_others


def _drop_edges_by_others(connection: Connection, source: int, kinds: Iterable[str]) -> set[int]:
    """Delete edges by which others describe a document, of kinds that it has itself. Returns the
    nodes to which they led."""
    deletion = delete(graph_edges).where(
        graph_edges.c.source == source,
        graph_edges.c.owner == _WORK_ITSELF,
        graph_edges.c.kind.in_(list(kinds)),
    )
    return set(connection.scalars(deletion.returning(graph_edges.c.target)))


def _demote_to_work(connection: Connection, node_id: int) -> None:
    """Turn a node into a work that is only cited, where its last document was deleted."""
    other_documents = select(graph_documents.c.id).where(graph_documents.c.node_id == node_id)
    connection.execute(
        update(graph_nodes)
        .where(graph_nodes.c.id == node_id, ~other_documents.exists())
        .values(kind=str(NodeKind.WORK))
    )


def _edge_row(source: int, kind: str, target: int, owner: int, edge: NewEdge) -> dict[str, Any]:
    return {
        "source": source,
        "kind": str(kind),
        "target": target,
        "owner": owner,
        "weight": edge.weight,
        "provenance": edge.provenance,
    }


def _cited_nodes(connection: Connection, source: int) -> set[int]:
    query = select(graph_edges.c.target).where(
        graph_edges.c.source == source, graph_edges.c.kind == EdgeKind.CITES
    )
    return set(connection.scalars(query))


def _adjust_citations(connection: Connection, before: set[int], after: set[int]) -> None:
    """Adjust the numbers of citations by those that came or went, as a much-cited work has too many
    to count all of them each time."""
    for changed_ids, step in ((after - before, 1), (before - after, -1)):
        if changed_ids:
            condition = among(connection, graph_nodes.c.id, changed_ids)
            count = update(graph_nodes).where(condition)
            connection.execute(count.values(cited=graph_nodes.c.cited + step))
