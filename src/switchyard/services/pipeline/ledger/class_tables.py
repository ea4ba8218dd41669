"""The table of what documents are classified as."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Column, ColumnElement, Double, Index, Table, Text, and_, select

from switchyard.services.engine.ledger.sql.tables import metadata

document_classes = Table(
    "document_classes",
    metadata,
    Column("document_id", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("label", Text, primary_key=True),
    Column("score", Double, nullable=False),
    Column("why", Text, nullable=False),
    Column("updated_at", Double, nullable=False),
)
Index(
    "ix_document_classes_label",
    document_classes.c.kind,
    document_classes.c.label,
    document_classes.c.document_id,
)


def in_classes(document_id: ColumnElement[str], classes: Iterable[str]) -> ColumnElement[bool]:
    """Whether the document has classes, each written `kind:label`: of several labels of one kind
    any, of several kinds one of each."""
    wanted: dict[str, set[str]] = {}
    for name in classes:
        kind, _, label = name.partition(":")
        wanted.setdefault(kind, set()).add(label)
    columns = document_classes.c
    return and_(
        *(
            document_id.in_(
                select(columns.document_id).where(
                    columns.kind == kind, columns.label.in_(sorted(labels))
                )
            )
            for kind, labels in sorted(wanted.items())
        )
    )
