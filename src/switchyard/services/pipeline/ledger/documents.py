"""Documents in the ledger: content, source, state and completed stages."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any
from uuid import uuid4

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    delete,
    func,
    or_,
    select,
    tuple_,
    update,
)

from switchyard.services.engine.ledger.short_ids import ShortIds
from switchyard.services.engine.ledger.sql.dialect import insert_into
from switchyard.services.engine.ledger.sql.paging import fetch_page
from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.engine.records.requests import DocumentFilter
from switchyard.services.engine.records.results import Page
from switchyard.services.pipeline.ledger.document_classes import in_classes
from switchyard.services.pipeline.ledger.pipeline_tables import document_classes, documents
from switchyard.services.pipeline.records.documents import Document


class DocumentRepository(Repository):
    """Documents. All methods raise LedgerUnavailable when the database is unreachable."""

    async def full_id(self, id_or_start: str) -> str:
        """Return the full id of a document, as `ShortIds.full_id` does. Raises AmbiguousId."""
        return await ShortIds(self._core).full_id(documents, id_or_start)

    @write
    def upsert_document(
        self,
        connection: Connection,
        content_hash: str,
        *,
        source: str | None = None,
        document_id: str | None = None,
        filename: str | None = None,
        title: str | None = None,
        media_type: str | None = None,
        size_bytes: int | None = None,
        pipeline: str | None = None,
        state: str = "queued",
        instead_of: Document | None = None,
    ) -> tuple[Document, bool]:
        """Return the document with that content, else with that source, else a new one; and whether
        it is new, which exactly one of any number of simultaneous callers gets.

        A new document takes over the source of `instead_of`, unless another run has taken that
        document over since it was read.
        """
        now = self.clock.time()
        values = {
            "id": document_id or str(uuid4()),
            "content_hash": content_hash,
            "source": source,
            "filename": filename,
            "title": title,
            "media_type": media_type,
            "size_bytes": size_bytes,
            "pipeline": pipeline,
            "state": state,
            "completed_stages": "[]",
            "created_at": now,
            "updated_at": now,
        }
        if instead_of is not None:
            connection.execute(
                update(documents)
                .where(_is_unchanged(instead_of), documents.c.content_hash != content_hash)
                .values(source=None, updated_at=now)
            )
        statement = insert_into(connection, documents).values(values)
        inserted = connection.execute(
            statement.on_conflict_do_nothing().returning(documents)
        ).one_or_none()
        if inserted is not None:
            return _document_of(inserted), True
        matches = _list_matching(connection, content_hash, source, documents.c.id == values["id"])
        return matches[0], False

    @read
    def find_document(
        self, connection: Connection, content_hash: str, source: str | None
    ) -> Document | None:
        """Return the document with that content, else with that source."""
        return next(iter(_list_matching(connection, content_hash, source)), None)

    @read
    def get_document(self, connection: Connection, document_id: str) -> Document | None:
        """Return one document."""
        query = select(documents).where(documents.c.id == document_id)
        row = connection.execute(query).one_or_none()
        return None if row is None else _document_of(row)

    @read
    def list_documents(
        self,
        connection: Connection,
        *,
        state: str | None = None,
        not_states: Collection[str] = (),
        source: str | None = None,
        classes: Collection[str] = (),
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Document]:
        """List documents, newest first: in `state` and not in `not_states`, from that source, with
        those classes (as in DocumentFilter). Raises ValueError for a limit outside 1 to 1,000 or a
        cursor that is not from a page before."""
        query = select(documents)
        if not_states:
            query = query.where(documents.c.state.not_in(sorted(not_states)))
        if state is not None:
            query = query.where(documents.c.state == state)
        if source is not None:
            query = query.where(documents.c.source == source)
        if classes:
            query = query.where(in_classes(documents.c.id, classes))
        return fetch_page(
            connection,
            query,
            documents.c.created_at,
            documents.c.id,
            _document_of,
            limit,
            cursor,
        )

    @read
    def documents_after(
        self,
        connection: Connection,
        document_filter: DocumentFilter,
        after: tuple[float, str] | None,
        limit: int,
    ) -> list[Document]:
        """List documents behind `after`, a `(created_at, id)`, oldest first."""
        key = tuple_(documents.c.created_at, documents.c.id)
        query = _filter_documents(select(documents), document_filter)
        if after is not None:
            query = query.where(key > tuple_(*after))
        query = query.order_by(documents.c.created_at, documents.c.id).limit(limit)
        return [_document_of(row) for row in connection.execute(query)]

    @read
    def document_ids(self, connection: Connection, document_filter: DocumentFilter) -> set[str]:
        """Return the ids of the documents that fit a filter."""
        query = _filter_documents(select(documents.c.id), document_filter)
        return set(connection.scalars(query))

    @read
    def count_documents(self, connection: Connection, document_filter: DocumentFilter) -> int:
        """Count the documents that fit a filter."""
        query = _filter_documents(select(func.count()).select_from(documents), document_filter)
        return connection.scalar(query) or 0

    @write
    def set_stage(
        self,
        connection: Connection,
        document_id: str,
        stage: str,
        state: str,
        *,
        completed: bool = False,
        run_id: str | None = None,
    ) -> Document | None:
        """Set a document's stage and state; with `completed`, add the stage to those that are
        completed (once). Returns None when there is no such document.

        With `run_id`, stage and state do not change if the document belongs to another run.
        """
        query = select(documents).where(documents.c.id == document_id).with_for_update()
        row = connection.execute(query).one_or_none()
        if row is None:
            return None
        stages = list(_document_of(row).completed_stages)
        if completed and stage not in stages:
            stages.append(stage)
        values: dict[str, Any] = {
            "completed_stages": json.dumps(stages),
            "updated_at": self.clock.time(),
        }
        if run_id is None or row.pipeline in (None, run_id):
            values |= {"current_stage": stage, "state": state}
        changed = connection.execute(
            update(documents)
            .where(documents.c.id == document_id)
            .values(values)
            .returning(documents)
        )
        return _document_of(changed.one())

    @write
    def add_completed_stage(self, connection: Connection, document_id: str, stage: str) -> None:
        """Add a stage to those that a document has completed (once), without changing its current
        stage."""
        condition = documents.c.id == document_id
        row = connection.execute(select(documents).where(condition).with_for_update()).one_or_none()
        if row is None or stage in (stages := _document_of(row).completed_stages):
            return
        connection.execute(
            update(documents).where(condition).values(completed_stages=json.dumps([*stages, stage]))
        )

    @write
    def renew_document(
        self,
        connection: Connection,
        document: Document,
        content_hash: str,
        *,
        filename: str | None,
        title: str | None,
        media_type: str | None,
        size_bytes: int | None,
        pipeline: str | None,
        source: str | None = None,
    ) -> Document | None:
        """Give a document other content. Its completed stages and classes are deleted; it keeps its
        id and its source, or gets `source` if it has none and no other document has that one.
        Returns None when the document was deleted, or another run has taken it over since it was
        read: exactly one of any number of simultaneous callers renews it.

        If another document has the very same content, that one keeps the content hash.
        """
        same_content = select(documents.c.id).where(
            documents.c.content_hash == content_hash, documents.c.id != document.id
        )
        values = {
            "filename": filename,
            "title": title,
            "media_type": media_type,
            "size_bytes": size_bytes,
            "pipeline": pipeline,
            "state": "queued",
            "current_stage": None,
            "completed_stages": "[]",
            "updated_at": self.clock.time(),
        }
        if connection.execute(same_content).first() is None:
            values["content_hash"] = content_hash
        if source is not None and document.source is None:
            same_source = select(documents.c.id).where(documents.c.source == source)
            if connection.execute(same_source).first() is None:
                values["source"] = source
        renewed = connection.execute(
            update(documents).where(_is_unchanged(document)).values(values).returning(documents)
        ).one_or_none()
        if renewed is None:
            return None
        if document.content_hash != content_hash:
            connection.execute(
                delete(document_classes).where(document_classes.c.document_id == document.id)
            )
        return _document_of(renewed)


def _is_unchanged(document: Document) -> ColumnElement[bool]:
    """Return the condition that no other run has taken a document over since it was read."""
    return and_(
        documents.c.id == document.id,
        documents.c.pipeline.is_not_distinct_from(document.pipeline),
    )


def _list_matching(
    connection: Connection,
    content_hash: str,
    source: str | None,
    *other_conditions: ColumnElement[bool],
) -> list[Document]:
    """List the documents with that content, then those with that source or that fit one of the
    other conditions."""
    conditions = [documents.c.content_hash == content_hash, *other_conditions]
    if source is not None:
        conditions.append(documents.c.source == source)
    matches = [
        _document_of(row) for row in connection.execute(select(documents).where(or_(*conditions)))
    ]
    return sorted(matches, key=lambda document: document.content_hash != content_hash)


def _document_of(row: Row[Any]) -> Document:
    columns = row._mapping
    fields = {column.name: columns[column.name] for column in documents.c}
    return Document(**{**fields, "completed_stages": tuple(json.loads(fields["completed_stages"]))})


def _filter_documents(query: Select[Any], document_filter: DocumentFilter) -> Select[Any]:
    """Restrict a query to the documents that fit a filter."""
    columns = documents.c
    if document_filter.state is not None:
        query = query.where(columns.state == document_filter.state)
    if document_filter.source_prefix is not None:
        query = query.where(
            columns.source.startswith(document_filter.source_prefix, autoescape=True)
        )
    if document_filter.classes:
        query = query.where(in_classes(columns.id, document_filter.classes))
    if document_filter.media_type is not None:
        query = query.where(columns.media_type == document_filter.media_type)
    if document_filter.since is not None:
        query = query.where(columns.created_at >= document_filter.since)
    if document_filter.until is not None:
        query = query.where(columns.created_at < document_filter.until)
    return query
