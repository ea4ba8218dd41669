"""Find, create, merge and drop nodes of the graph within one transaction, by their descriptions.

One transaction at a time writes the graph, as two could create the same work twice. It locks the
counter of ids from its start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, and_, delete, func, insert, literal, or_, select, update

from switchyard.services.engine.ledger.sql.dialect import among, insert_into
from switchyard.services.pipeline.ledger.graph_identity import (
    Node,
    best_key,
    contradict,
    has_only_title,
    same_by_key,
    same_by_title,
    trust_of,
)
from switchyard.services.pipeline.ledger.pipeline_tables import (
    graph_counters,
    graph_documents,
    graph_edges,
    graph_keys,
    graph_nodes,
    graph_ranks,
)
from switchyard.services.pipeline.records.graph import EdgeKind, NodeDescription, NodeKind

MAX_COMPARED = 2_000
"""Most nodes that are read because they have one of the titles."""
_WORK_KINDS = (NodeKind.WORK, NodeKind.DOCUMENT)


class GraphNodes:
    """The nodes that one transaction reads and changes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # This changes nothing, but locks the row: other writers of the graph wait until this
        # transaction ends.
        last_id = connection.scalar(
            update(graph_counters)
            .where(graph_counters.c.name == "id")
            .values(value=graph_counters.c.value)
            .returning(graph_counters.c.value)
        )
        self._next = int(last_id or 1)
        self._nodes: dict[int, Node] = {}
        self._by_key: dict[str, int] = {}
        self._by_title: dict[str, list[int]] = {}
        self._merged: dict[int, int] = {}
        self._new_keys: list[tuple[str, int]] = []
        self.better_descriptions: dict[int, NodeDescription] = {}
        """Descriptions of works that may be better than those so far, by node: their edges are
        written for the work itself."""

    def new_id(self) -> int:
        self._next += 1
        return self._next

    def current_id(self, node_id: int) -> int:
        """Return the id of the node into which a node was merged, or else the node's own."""
        while node_id in self._merged:
            node_id = self._merged[node_id]
        return node_id

    def node(self, node_id: int) -> Node:
        return self._nodes[self.current_id(node_id)]

    def load(
        self, descriptions: Iterable[NodeDescription], document_ids: Iterable[str] = ()
    ) -> None:
        """Read all nodes that one of these descriptions may be of."""
        description_list = list(descriptions)
        keys = {key for each in description_list for key in each.keys} - self._by_key.keys()
        titles = {
            each.title for each in description_list if each.title and each.kind in _WORK_KINDS
        }
        own_document_ids = {
            each.document_id for each in description_list if each.document_id
        } | set(document_ids)
        node_ids = set(self._select_ids(graph_keys.c.node_id, graph_keys.c.key, keys))
        node_ids |= set(
            self._select_ids(graph_nodes.c.id, graph_nodes.c.title, titles, MAX_COMPARED)
        )
        node_ids |= set(
            self._select_ids(
                graph_documents.c.node_id, graph_documents.c.document_id, own_document_ids
            )
        )
        self._read(node_ids)

    def find(self, description: NodeDescription, preferred: int | None = None) -> int:
        """Return the id of the node that a description is of; create the node if there is none.
        Nodes that prove to be the same are merged. The node `preferred` is tried before all
        others."""
        node_id = None
        if preferred is not None and not contradict(self.node(preferred).keys, description.keys):
            node_id = self.current_id(preferred)
        for key in description.keys:
            key_owner = self._by_key.get(key)
            if key_owner is None or not same_by_key(self.node(key_owner), key, description):
                continue
            node_id = self._merge_if_same(node_id, self.current_id(key_owner), key)
        if description.kind in _WORK_KINDS and description.title:
            node_id = self._find_by_title(description, node_id)
        if node_id is None:
            return self._create(description)
        self._enrich(self.node(node_id), description)
        return self.current_id(node_id)

    def flush(self) -> None:
        """Write new and changed nodes."""
        new_rows = [_row(each) | {"cited": 0} for each in self._nodes.values() if each.is_new]
        if new_rows:
            self._connection.execute(insert(graph_nodes), new_rows)
        for node in self._nodes.values():
            if node.is_changed and not node.is_new:
                changes = update(graph_nodes).where(graph_nodes.c.id == node.id)
                self._connection.execute(changes.values(_row(node)))
            node.is_new = node.is_changed = False
        if self._new_keys:
            rows = [
                {"key": key, "node_id": self.current_id(node_id)} for key, node_id in self._new_keys
            ]
            statement = insert_into(self._connection, graph_keys).on_conflict_do_nothing()
            self._connection.execute(statement, rows)
            self._new_keys.clear()
        counter = update(graph_counters).where(graph_counters.c.name == "id")
        self._connection.execute(counter.values(value=self._next))

    def change(self, node_id: int, **values: Any) -> None:
        """Set attributes of a node that was read or created here."""
        node = self.node(node_id)
        for name, value in values.items():
            setattr(node, name, value)
        node.is_changed = True

    def drop_unreferenced(self, node_ids: Iterable[int]) -> None:
        """Drop those of the nodes that are no document and to which no edge leads. Then do the same
        with the nodes to which edges of the dropped ones led."""
        candidate_ids = set(node_ids)
        while candidate_ids:
            document_of_node = select(graph_documents.c.id).where(
                graph_documents.c.node_id == graph_nodes.c.id
            )
            edge_to_node = select(graph_edges.c.target).where(
                graph_edges.c.target == graph_nodes.c.id
            )
            unreferenced = select(graph_nodes.c.id).where(
                among(self._connection, graph_nodes.c.id, candidate_ids),
                ~document_of_node.exists(),
                ~edge_to_node.exists(),
            )
            ids = list(self._connection.scalars(unreferenced))
            if not ids:
                return
            is_source = among(self._connection, graph_edges.c.source, ids)
            targets = select(graph_edges.c.target).where(is_source).distinct()
            candidate_ids = set(self._connection.scalars(targets)) - set(ids)
            cited_ids = self._ids_cited_by(ids)
            for column in (
                graph_edges.c.source,
                graph_keys.c.node_id,
                graph_ranks.c.node_id,
                graph_nodes.c.id,
            ):
                table = column.table
                self._connection.execute(delete(table).where(among(self._connection, column, ids)))
            self.count_citations(cited_ids)

    def count_citations(self, node_ids: Iterable[int]) -> None:
        """Count again how many works cite each of these nodes."""
        ids = set(node_ids)
        if not ids:
            return
        edges = graph_edges.alias()
        count = (
            select(func.count(edges.c.source.distinct()))
            .where(edges.c.target == graph_nodes.c.id, edges.c.kind == EdgeKind.CITES)
            .scalar_subquery()
        )
        condition = among(self._connection, graph_nodes.c.id, ids)
        self._connection.execute(update(graph_nodes).where(condition).values(cited=count))

    def _merge_if_same(self, node_id: int | None, other_id: int, key: str) -> int:
        """Merge two nodes that one description names, unless they contradict each other. Returns
        the id of the node that the description is of."""
        if node_id is None or node_id == other_id:
            return other_id
        node, other_node = self.node(node_id), self.node(other_id)
        are_two_documents = key.startswith("title:") and bool(
            node.documents and other_node.documents
        )
        if contradict(node.keys, other_node.keys) or are_two_documents:
            return node_id
        return self._merge(node_id, other_id)

    def _find_by_title(self, description: NodeDescription, node_id: int | None) -> int | None:
        for candidate_id in list(self._by_title.get(description.title, ())):
            other_id = self.current_id(candidate_id)
            if other_id == node_id or not same_by_title(self.node(other_id), description):
                continue
            if contradict(self.node(other_id).keys, description.keys):
                continue
            if node_id is None:
                node_id = other_id
            elif has_only_title(self.node(other_id)) and same_by_title(
                self.node(other_id), self.node(node_id)
            ):
                node_id = self._merge(node_id, other_id)
        return node_id

    def _create(self, description: NodeDescription) -> int:
        node_id = self.new_id()
        keys = [key for key in description.keys if key not in self._by_key]
        if description.document_id is not None:
            name = best_key([*keys, f"document:{description.document_id}"])
        else:
            name = best_key(keys) if keys else f"{description.kind}:{node_id}"
        if not keys and description.document_id is None:
            keys = [name]
        node = Node(
            node_id,
            description.kind,
            name,
            description.label,
            description.title,
            description.author,
            description.year,
            description.provenance,
            is_new=True,
        )
        self._nodes[node_id] = node
        self._add_keys(node, keys)
        if node.title:
            self._by_title.setdefault(node.title, []).append(node_id)
        self._note_better_description(node, description)
        return node_id

    def _enrich(self, node: Node, description: NodeDescription) -> None:
        before = replace(node)
        is_better = trust_of(description.provenance) > trust_of(node.provenance)
        is_repeated = (
            description.provenance == node.provenance and description.provenance != "reference"
        )
        if (is_better or is_repeated) and description.label:
            node.label, node.title, node.provenance = (
                description.label,
                description.title,
                description.provenance,
            )
        if description.year is not None and (is_better or is_repeated or node.year is None):
            node.year = description.year
        if description.author and (is_better or is_repeated or not node.author):
            node.author = description.author
        if description.kind is NodeKind.DOCUMENT:
            node.kind = NodeKind.DOCUMENT
        self._add_keys(node, [key for key in description.keys if key not in self._by_key])
        node.is_changed |= replace(node, keys=before.keys) != before
        if is_better or is_repeated or node.kind is NodeKind.DOCUMENT:
            self._note_better_description(node, description)

    def _note_better_description(self, node: Node, description: NodeDescription) -> None:
        if description.edges and description.document_id is None:
            self.better_descriptions[node.id] = description

    def _add_keys(self, node: Node, keys: Sequence[str]) -> None:
        for key in keys:
            if contradict(node.keys, (key,)):
                continue
            node.keys.add(key)
            self._by_key[key] = node.id
            self._new_keys.append((key, node.id))
        if node.keys:
            name = best_key([node.key, *node.keys])
            node.is_changed |= name != node.key
            node.key = name

    def _merge(self, node_id: int, other_id: int) -> int:
        """Merge two nodes into the older one."""
        self.flush()
        kept_id, merged_id = sorted((node_id, other_id))
        kept, merged = self.node(kept_id), self.node(merged_id)
        affected_ids = {kept_id} | self._ids_cited_by((kept_id, merged_id))
        for table in (graph_keys, graph_documents):
            move = update(table).where(table.c.node_id == merged_id).values(node_id=kept_id)
            self._connection.execute(move)
        self._move_edges(merged_id, kept_id)
        for column in (graph_ranks.c.node_id, graph_nodes.c.id):
            self._connection.execute(delete(column.table).where(column == merged_id))
        if trust_of(merged.provenance) > trust_of(kept.provenance):
            kept.label, kept.title, kept.provenance = merged.label, merged.title, merged.provenance
        kept.year = merged.year if kept.year is None else kept.year
        kept.author = kept.author or merged.author
        kept.keys |= merged.keys
        kept.documents |= merged.documents
        if NodeKind.DOCUMENT in (kept.kind, merged.kind):
            kept.kind = NodeKind.DOCUMENT
        kept.key = best_key([kept.key, *kept.keys])
        kept.is_changed = True
        self._merged[merged_id] = kept_id
        del self._nodes[merged_id]
        self._by_key |= dict.fromkeys(merged.keys, kept_id)
        if merged_id in self.better_descriptions:
            self.better_descriptions[kept_id] = self.better_descriptions.pop(merged_id)
        self.count_citations(affected_ids)
        return kept_id

    def _move_edges(self, merged_id: int, kept_id: int) -> None:
        edges = graph_edges.c
        kept_edges = graph_edges.alias()
        # The work's own edges (owner 0) must not be there twice: those of the kept node stay.
        edges_of_kept = select(kept_edges.c.target).where(
            kept_edges.c.source == kept_id, kept_edges.c.kind == edges.kind, edges.owner == 0
        )
        outgoing = select(
            literal(kept_id), edges.kind, edges.target, edges.owner, edges.weight, edges.provenance
        ).where(edges.source == merged_id, edges.target != kept_id, ~edges_of_kept.exists())
        incoming = select(
            edges.source, edges.kind, literal(kept_id), edges.owner, edges.weight, edges.provenance
        ).where(edges.target == merged_id, edges.source != kept_id, edges.source != merged_id)
        names = ["source", "kind", "target", "owner", "weight", "provenance"]
        for moved_edges in (outgoing, incoming):
            insertion = insert_into(self._connection, graph_edges).from_select(names, moved_edges)
            self._connection.execute(insertion.on_conflict_do_nothing())
        is_of_merged = or_(edges.source == merged_id, edges.target == merged_id)
        self._connection.execute(delete(graph_edges).where(is_of_merged))

    def _ids_cited_by(self, node_ids: Iterable[int]) -> set[int]:
        edges = graph_edges.c
        query = select(edges.target).where(
            and_(among(self._connection, edges.source, node_ids), edges.kind == EdgeKind.CITES)
        )
        return set(self._connection.scalars(query))

    def _read(self, node_ids: set[int]) -> None:
        ids = node_ids - self._nodes.keys()
        if not ids:
            return
        connection = self._connection
        rows = connection.execute(
            select(graph_nodes).where(among(connection, graph_nodes.c.id, ids))
        )
        for row in rows:
            self._nodes[row.id] = Node(
                row.id,
                NodeKind(row.kind),
                row.key,
                row.label,
                row.title,
                row.author,
                row.year,
                row.provenance,
            )
            if row.title:
                self._by_title.setdefault(row.title, []).append(row.id)
        key_rows = select(graph_keys).where(among(connection, graph_keys.c.node_id, ids))
        for key, node_id in connection.execute(key_rows):
            self._nodes[node_id].keys.add(key)
            self._by_key[key] = node_id
        document_rows = select(graph_documents.c.document_id, graph_documents.c.node_id).where(
            among(connection, graph_documents.c.node_id, ids)
        )
        for document_id, node_id in connection.execute(document_rows):
            self._nodes[node_id].documents.add(document_id)

    def _select_ids(
        self, id_column: Any, column: Any, values: Iterable[Any], limit: int | None = None
    ) -> list[int]:
        query = select(id_column).where(among(self._connection, column, values)).limit(limit)
        return list(self._connection.scalars(query))


def _row(node: Node) -> dict[str, Any]:
    return {
        "id": node.id,
        "kind": str(node.kind),
        "key": node.key,
        "label": node.label,
        "title": node.title,
        "author": node.author,
        "year": node.year,
        "provenance": node.provenance,
    }
