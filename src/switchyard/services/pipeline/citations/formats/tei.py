"""References as TEI P5: a `listBibl` of `biblStruct`, as GROBID writes them."""

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from switchyard.services.pipeline.citations.formats.kinds import WorkKind, kind_of
from switchyard.services.pipeline.citations.reference import Person, Reference
from switchyard.services.pipeline.text.plain import clean

TEI = "http://www.tei-c.org/ns/1.0"
_XML_ID = "{http://www.w3.org/XML/1998/namespace}id"
_LEVELS = {WorkKind.ARTICLE: "j"}
_PARTS = (("volume", "volume"), ("issue", "issue"), ("page", "pages"))


def tei(references: Sequence[Reference], labels: Sequence[str] = ()) -> str:
    """A TEI document with one `biblStruct` for each, in their order; `labels` are how the text
    names them. The first has the id b0."""
    root = ET.Element("TEI", xmlns=TEI)
    header = ET.SubElement(ET.SubElement(root, "teiHeader"), "fileDesc")
    _add_text(ET.SubElement(header, "titleStmt"), "title", "References")
    _add_text(ET.SubElement(header, "publicationStmt"), "p", "Extracted")
    _add_text(ET.SubElement(header, "sourceDesc"), "p", "A list of references")
    back = ET.SubElement(ET.SubElement(root, "text"), "back")
    listed = ET.SubElement(ET.SubElement(back, "div", type="references"), "listBibl")
    for number, reference in enumerate(references):
        entry = ET.SubElement(listed, "biblStruct", {_XML_ID: f"b{number}"})
        if number < len(labels) and labels[number]:
            entry.set("n", clean(labels[number]))
        _describe(entry, reference)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _describe(entry: ET.Element, reference: Reference) -> None:
    """Title and authors stand with the part where the work has appeared in another."""
    kind = kind_of(reference)
    whole = entry
    if reference.container:
        whole = ET.SubElement(entry, "analytic")
        _of_work(whole, reference, level="a")
        whole = ET.SubElement(entry, "monogr")
        _add_text(whole, "title", reference.container, level=_LEVELS.get(kind, "m"))
    else:
        whole = ET.SubElement(entry, "monogr")
        _of_work(whole, reference, level="m")
    _add_text(whole, "editor", reference.editors)
    _add_text(whole, "edition", reference.edition)
    imprint = ET.SubElement(whole, "imprint")
    _add_text(imprint, "publisher", reference.publisher)
    _add_text(imprint, "pubPlace", reference.place)
    for unit, name in _PARTS:
        _add_text(imprint, "biblScope", getattr(reference, name), unit=unit)
    if reference.year:
        ET.SubElement(imprint, "date", type="published", when=f"{reference.year:04}")
    if reference.url:
        ET.SubElement(entry, "ptr", target=clean(reference.url))
    for note in reference.also:
        _add_text(entry, "note", note)
    _add_text(entry, "note", reference.text, type="raw_reference")


def _of_work(parent: ET.Element, reference: Reference, *, level: str) -> None:
    _add_text(parent, "title", reference.title, level=level)
    for person in reference.authors:
        _author(ET.SubElement(parent, "author"), person)
    _add_text(parent, "idno", reference.doi, type="DOI")
    _add_text(parent, "idno", reference.arxiv_id, type="arXiv")
    _add_text(parent, "idno", reference.isbn, type="ISBN")


def _author(author: ET.Element, person: Person) -> None:
    if not person.given:
        _add_text(author, "orgName", person.family)
        return
    name = ET.SubElement(author, "persName")
    _add_text(name, "forename", person.given)
    _add_text(name, "surname", person.family)


def _add_text(parent: ET.Element, tag: str, text: str, **attributes: str) -> None:
    """An element with that text; none where there is no text."""
    if said := clean(text):
        ET.SubElement(parent, tag, attributes).text = said
