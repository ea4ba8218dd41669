"""All formats of lists of references, behind one function."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from switchyard.services.pipeline.citations.formats.bibtex import bibtex
from switchyard.services.pipeline.citations.formats.csl import csl
from switchyard.services.pipeline.citations.formats.tei import tei
from switchyard.services.pipeline.citations.reference import Reference
from switchyard.services.pipeline.citations.works import WorkLink, with_work


class Format(StrEnum):
    """What a list of references can be had as."""

    JSON = "json"
    BIBTEX = "bibtex"
    CSL = "csl"
    TEI = "tei"


MEDIA_TYPES = {
    Format.JSON: "application/json",
    Format.BIBTEX: "application/x-bibtex",
    Format.CSL: "application/vnd.citationstyles.csl+json",
    Format.TEI: "application/tei+xml",
}


@dataclass(frozen=True)
class Exported:
    """A list of references in a format."""

    content: bytes
    """In UTF-8."""
    media_type: str


def exported(told: Sequence[Mapping[str, Any]], to: Format) -> Exported:
    """References as jobs keep them (docs/citations.md), written in a format."""
    references = [_reference(each) for each in told]
    match to:
        case Format.BIBTEX:
            text = bibtex(references)
        case Format.CSL:
            text = json.dumps(csl(references), ensure_ascii=False, indent=1) + "\n"
        case Format.TEI:
            text = '<?xml version="1.0" encoding="UTF-8"?>\n' + tei(
                references, [str(each.get("label", "")) for each in told]
            )
        case Format.JSON:
            text = json.dumps(list(told), ensure_ascii=False) + "\n"
    return Exported(text.encode("utf-8", "backslashreplace"), MEDIA_TYPES[to])


def _reference(told: Mapping[str, Any]) -> Reference:
    reference = Reference.from_json(told)
    link = WorkLink.from_json(told["link"]) if "link" in told else None
    return reference if link is None or link.work is None else with_work(reference, link.work)
