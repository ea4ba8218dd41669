"""References as TEI P5: a `listBibl` of `biblStruct`, as GROBID writes them."""

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from switchyard.services.pipeline.citations.formats.work_kinds import WorkKind, kind_of
from switchyard.services.pipeline.citations.reference import Person, Reference
from switchyard.services.pipeline.text.plain_text import clean

TEI = "http://www.tei-c.org/ns/1.0"
_XML_ID = "{http://www.w3.org/XML/1998/namespace}id"
_CONTAINER_LEVELS = {WorkKind.ARTICLE: "j"}
_SCOPE_FIELDS = (("volume", "volume"), ("issue", "issue"), ("page", "pages"))


def tei(references: Sequence[Reference], labels: Sequence[str] = ()) -> str:
    """Return a TEI document with one `biblStruct` for each reference, in order. The first has the
    id b0. `labels` are the labels that the references have in the text."""
    root = ET.Element("TEI", xmlns=TEI)
    header = ET.SubElement(ET.SubElement(root, "teiHeader"), "fileDesc")
    _add_text(ET.SubElement(header, "titleStmt"), "title", "References")
    _add_text(ET.SubElement(header, "publicationStmt"), "p", "Extracted")
    _add_text(ET.SubElement(header, "sourceDesc"), "p", "A list of references")
    back = ET.SubElement(ET.SubElement(root, "text"), "back")
    bibliography = ET.SubElement(ET.SubElement(back, "div", type="references"), "listBibl")
    for number, reference in enumerate(references):
        entry = ET.SubElement(bibliography, "biblStruct", {_XML_ID: f"b{number}"})
        if number < len(labels) and labels[number]:
            entry.set("n", clean(labels[number]))
        _fill_entry(entry, reference)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _fill_entry(entry: ET.Element, reference: Reference) -> None:
    """Fill an entry. Where the work appeared in another work, its title and authors belong to
    `analytic`, and the other work is `monogr`."""
    kind = kind_of(reference)
    if reference.container:
        _add_work(ET.SubElement(entry, "analytic"), reference, level="a")
        monograph = ET.SubElement(entry, "monogr")
        _add_text(monograph, "title", reference.container, level=_CONTAINER_LEVELS.get(kind, "m"))
    else:
        monograph = ET.SubElement(entry, "monogr")
        _add_work(monograph, reference, level="m")
    _add_text(monograph, "editor", reference.editors)
    _add_text(monograph, "edition", reference.edition)
    imprint = ET.SubElement(monograph, "imprint")
    _add_text(imprint, "publisher", reference.publisher)
    _add_text(imprint, "pubPlace", reference.place)
    for unit, name in _SCOPE_FIELDS:
        _add_text(imprint, "biblScope", getattr(reference, name), unit=unit)
    if reference.year:
        ET.SubElement(imprint, "date", type="published", when=f"{reference.year:04}")
    if reference.url:
        ET.SubElement(entry, "ptr", target=clean(reference.url))
    for note in reference.notes:
        _add_text(entry, "note", note)
    _add_text(entry, "note", reference.text, type="raw_reference")


def _add_work(parent: ET.Element, reference: Reference, *, level: str) -> None:
    _add_text(parent, "title", reference.title, level=level)
    for person in reference.authors:
        _fill_author(ET.SubElement(parent, "author"), person)
    _add_text(parent, "idno", reference.doi, type="DOI")
    _add_text(parent, "idno", reference.arxiv_id, type="arXiv")
    _add_text(parent, "idno", reference.isbn, type="ISBN")


def _fill_author(author: ET.Element, person: Person) -> None:
    if not person.given:
        _add_text(author, "orgName", person.family)
        return
    name = ET.SubElement(author, "persName")
    _add_text(name, "forename", person.given)
    _add_text(name, "surname", person.family)


def _add_text(parent: ET.Element, tag: str, text: str, **attributes: str) -> None:
    """Add an element with that text; none where there is no text."""
    if cleaned := clean(text):
        ET.SubElement(parent, tag, attributes).text = cleaned
