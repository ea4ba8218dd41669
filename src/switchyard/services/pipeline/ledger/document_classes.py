"""Classes of documents in the ledger, and the condition by which filters find them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import ColumnElement, Connection, and_, delete, select

from switchyard.services.engine.ledger.sql.dialect import insert_into
from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.pipeline.ledger.pipeline_tables import document_classes
from switchyard.services.pipeline.records.documents import DocumentClass

_MAX_IDS = 500
"""Ids in one statement."""


class DocumentClassRepository(Repository):
    """Classes of documents. All methods raise LedgerUnavailable when the database is
    unreachable."""

    @write
    def put_classes(
        self, connection: Connection, document_id: str, classes: Sequence[DocumentClass]
    ) -> None:
        """Replace the classes of a document by these."""
        now = self.clock.time()
        rows = [
            {
                "document_id": document_id,
                "kind": each.kind,
                "label": each.label,
                "score": each.score,
                "why": json.dumps(dict(each.why), ensure_ascii=False),
                "updated_at": now,
            }
            for each in classes
        ]
        columns = document_classes.c
        connection.execute(delete(document_classes).where(columns.document_id == document_id))
        if rows:
            # Two runs may write at the same time: the later one counts.
            insertion = insert_into(connection, document_classes).values(rows)
            changes = {name: insertion.excluded[name] for name in ("score", "why", "updated_at")}
            keys = ["document_id", "kind", "label"]
            connection.execute(insertion.on_conflict_do_update(index_elements=keys, set_=changes))

    @read
    def classes_of(
        self, connection: Connection, document_ids: Collection[str]
    ) -> dict[str, tuple[DocumentClass, ...]]:
        """Return the classes of each document, by kind, the highest score first; documents without
        any are absent."""
        columns = document_classes.c
        ids = sorted(set(document_ids))
        by_document: dict[str, tuple[DocumentClass, ...]] = {}
        for start in range(0, len(ids), _MAX_IDS):
            query = (
                select(document_classes)
                .where(columns.document_id.in_(ids[start : start + _MAX_IDS]))
                .order_by(columns.kind, columns.score.desc(), columns.label)
            )
            for row in connection.execute(query):
                document_class = DocumentClass(row.kind, row.label, row.score, json.loads(row.why))
                by_document[row.document_id] = (
                    *by_document.get(row.document_id, ()),
                    document_class,
                )
        return by_document


def in_classes(document_id: ColumnElement[str], classes: Iterable[str]) -> ColumnElement[bool]:
    """Return the condition that a document has classes, each written `kind:label`: one of the
    labels for each kind that is named."""
    labels_by_kind: dict[str, set[str]] = {}
    for name in classes:
        kind, _, label = name.partition(":")
        labels_by_kind.setdefault(kind, set()).add(label)
    columns = document_classes.c
    return and_(
        *(
            document_id.in_(
                select(columns.document_id).where(
                    columns.kind == kind, columns.label.in_(sorted(labels))
                )
            )
            for kind, labels in sorted(labels_by_kind.items())
        )
    )
