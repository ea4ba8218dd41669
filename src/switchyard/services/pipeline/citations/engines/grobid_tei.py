"""Read GROBID's answers: TEI with one `biblStruct` for each reference."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from switchyard.services.pipeline.citations.reference import Person, Reference
from switchyard.services.pipeline.citations.reference_boxes import Box
from switchyard.services.pipeline.sources.safe_xml import xml_tree

_TEI = "{http://www.tei-c.org/ns/1.0}"
_XML_ID = "{http://www.w3.org/XML/1998/namespace}id"
_MAX_ENTRIES = 5_000
_COORDS = re.compile(r"(\d{1,6}),(-?[\d.]{1,12}),(-?[\d.]{1,12}),([\d.]{1,12}),([\d.]{1,12})")


@dataclass(frozen=True)
class TeiEntry:
    """A reference, with its places on the pages if GROBID gives them."""

    reference: Reference
    boxes: tuple[Box, ...] = ()


def entries_of(answer: bytes) -> list[TeiEntry]:
    """Return the references of an answer, in the order of their ids (b0, b1, …); none for an empty
    answer.

    Raises InvalidSourceResponse.
    """
    if not answer.strip():
        return []
    elements = list(xml_tree(answer, "GROBID").iter(f"{_TEI}biblStruct"))[:_MAX_ENTRIES]
    return [_entry(each) for each in sorted(elements, key=_number)]


def _number(element: ET.Element) -> int:
    digits = re.fullmatch(r"b(\d{1,9})", element.get(_XML_ID, ""))
    return int(digits[1]) if digits else _MAX_ENTRIES


def _entry(element: ET.Element) -> TeiEntry:
    analytic = element.find(f"{_TEI}analytic")
    monograph = element.find(f"{_TEI}monogr")
    host = monograph if monograph is not None else element
    work = host if analytic is None else analytic
    title = _text(work, "title")
    container = _text(host, "title") if analytic is not None else ""
    authors = work.findall(f"{_TEI}author") or host.findall(f"{_TEI}author")
    imprint = host.find(f"{_TEI}imprint")
    imprint = host if imprint is None else imprint
    reference = Reference(
        text=next(_notes(element, "raw_reference"), ""),
        authors=tuple(person for each in authors for person in _person(each)),
        editors="; ".join(_all_text(each) for each in host.findall(f"{_TEI}editor")),
        # GROBID may give a book's title only for the whole work.
        title=title or container,
        container=container if title else "",
        year=_year(imprint),
        volume=_scope(imprint, "volume"),
        issue=_scope(imprint, "issue"),
        pages=_scope(imprint, "page"),
        publisher=_text(imprint, "publisher"),
        place=_text(imprint, "pubPlace"),
    )
    return TeiEntry(reference, tuple(_boxes(element.get("coords", ""))))


def _person(author: ET.Element) -> Iterator[Person]:
    family = " ".join(_all_text(each) for each in author.iter(f"{_TEI}surname"))
    given_names = " ".join(_all_text(each) for each in author.iter(f"{_TEI}forename"))
    if family:
        yield Person(family, given_names)
    elif full_name := _all_text(author):
        yield Person(full_name)


def _year(imprint: ET.Element) -> int | None:
    for date in imprint.findall(f"{_TEI}date"):
        digits = re.search(r"\d{4}", date.get("when", "") or _all_text(date))
        if digits:
            return int(digits.group())
    return None


def _scope(imprint: ET.Element, unit: str) -> str:
    for scope in imprint.findall(f"{_TEI}biblScope"):
        if scope.get("unit") == unit:
            first, last = scope.get("from", ""), scope.get("to", "")
            both = f"{first}–{last}" if first and last else first
            return both or _all_text(scope)
    return ""


def _notes(element: ET.Element, kind: str) -> Iterator[str]:
    yield from (
        _all_text(each) for each in element.findall(f"{_TEI}note") if each.get("type") == kind
    )


def _boxes(coords: str) -> Iterator[Box]:
    """Yield the boxes of `page,x,y,width,height`, several with semicolons between them."""
    for match in _COORDS.finditer(coords[:10_000]):
        page, *coordinates = match.groups()
        try:
            yield Box(int(page), *(float(each) for each in coordinates))
        except ValueError:
            return


def _text(element: ET.Element, tag: str) -> str:
    child = element.find(f"{_TEI}{tag}")
    return "" if child is None else _all_text(child)


def _all_text(element: ET.Element) -> str:
    return " ".join("".join(element.itertext()).split())
