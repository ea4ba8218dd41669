"""Write lists of references in any format."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from switchyard.services.pipeline.citations.cited_works import WorkLink, with_work
from switchyard.services.pipeline.citations.formats.bibtex import bibtex
from switchyard.services.pipeline.citations.formats.csl import csl
from switchyard.services.pipeline.citations.formats.tei import tei
from switchyard.services.pipeline.citations.reference import Reference


class ReferenceFormat(StrEnum):
    """Formats of a list of references."""

    JSON = "json"
    BIBTEX = "bibtex"
    CSL = "csl"
    TEI = "tei"


MEDIA_TYPES = {
    ReferenceFormat.JSON: "application/json",
    ReferenceFormat.BIBTEX: "application/x-bibtex",
    ReferenceFormat.CSL: "application/vnd.citationstyles.csl+json",
    ReferenceFormat.TEI: "application/tei+xml",
}


@dataclass(frozen=True)
class ReferenceExport:
    """A list of references in a format."""

    content: bytes
    """In UTF-8."""
    media_type: str


def export_references(
    stored: Sequence[Mapping[str, Any]], export_format: ReferenceFormat
) -> ReferenceExport:
    """Write stored references (docs/citations.md) in a format."""
    references = [_reference(each) for each in stored]
    match export_format:
        case ReferenceFormat.BIBTEX:
            text = bibtex(references)
        case ReferenceFormat.CSL:
            text = json.dumps(csl(references), ensure_ascii=False, indent=1) + "\n"
        case ReferenceFormat.TEI:
            text = '<?xml version="1.0" encoding="UTF-8"?>\n' + tei(
                references, [str(each.get("label", "")) for each in stored]
            )
        case ReferenceFormat.JSON:
            text = json.dumps(list(stored), ensure_ascii=False) + "\n"
    return ReferenceExport(text.encode("utf-8", "backslashreplace"), MEDIA_TYPES[export_format])


def _reference(stored: Mapping[str, Any]) -> Reference:
    reference = Reference.from_json(stored)
    link = WorkLink.from_json(stored["link"]) if "link" in stored else None
    return reference if link is None or link.work is None else with_work(reference, link.work)
