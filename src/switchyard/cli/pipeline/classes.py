"""Filter documents by class, show their classes, and classify documents again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.cli.base.api_client import api_client
from switchyard.cli.base.errors import WrongUsage
from switchyard.cli.base.output import JsonOption, echo, print_json_line, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from switchyard.api.client import Client
    from switchyard.api.models.documents import ClassView

ClassOption = Annotated[
    list[str] | None,
    typer.Option(
        "--class",
        metavar="KIND:LABEL",
        help="Only documents of this class, for example privacy:public; repeatable.",
    ),
]

_MAX_DOCUMENTS = 100
"""Number of newest documents whose classes the hint names."""


def unknown_class_hint(client: Client, classes: Sequence[str] | None) -> str:
    """Return a hint for a listing that found nothing: which of its classes no document has, and
    which classes the newest documents have. Empty if documents have each class."""
    from itertools import islice

    unknown = [
        each
        for each in classes or ()
        if not client.documents_page(classes=[each], limit=1).documents
    ]
    if not unknown:
        return ""
    known_classes = sorted(
        {
            f"{each.kind}:{each.label}"
            for document in islice(client.documents(), _MAX_DOCUMENTS)
            for each in document.classes
        }
    )
    known = f"; the newest have {', '.join(known_classes)}" if known_classes else ""
    return f" No document is of the class {', '.join(unknown)}{known}."


def classify(
    documents: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Ids of documents, from `jobctl documents list`."),
    ] = None,
    all_documents: Annotated[
        bool, typer.Option("--all", help="All completed documents, through a backfill.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Classify documents again, after a change of JOBS_CLASSES or of the embedder.

    Prints the job ids, or with --all the id of the backfill. Documents whose result would be the
    same are skipped.
    """
    if all_documents == bool(documents):
        raise WrongUsage("give the ids of documents, or --all")
    with api_client() as client:
        if all_documents:
            backfill = client.start_backfill(
                "documents",
                {"state": "completed"},
                job_type="classify_document",
                payload={"document_id": "{document_id}"},
            )
            if as_json:
                print_json_line(backfill)
            else:
                echo(backfill.id)
                say(f"`jobctl backfill watch {backfill.id}` shows how far it is")
            return
        for document_id in documents or ():
            client.document(document_id)  # a job of no document would only become a dead letter
        for document_id in documents or ():
            job = client.publish("hot.classify_document", {"document_id": document_id})
            if as_json:
                print_json_line(job)
            else:
                echo(job.job_id)


def class_text(document_class: ClassView) -> str:
    """Describe a class in a line, with the keywords that led to it."""
    words = document_class.why.get("keywords") or {}
    words_text = ", ".join(f"{word} ×{count}" for word, count in words.items())
    return f"{document_class.kind}:{document_class.label}  {document_class.score:g}" + (
        f"  {words_text}" if words_text else ""
    )
