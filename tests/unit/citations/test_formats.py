"""References in BibTeX, CSL-JSON and TEI are read back by others as they were meant."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pybtex.database import BibliographyData, parse_string

from switchyard.services.pipeline.citations.cited_works import CitedWork, LinkStatus, WorkLink
from switchyard.services.pipeline.citations.formats.bibtex import bibtex
from switchyard.services.pipeline.citations.formats.citation_keys import citation_keys_of
from switchyard.services.pipeline.citations.formats.csl import csl
from switchyard.services.pipeline.citations.formats.export import ReferenceFormat, export_references
from switchyard.services.pipeline.citations.formats.tei import TEI
from switchyard.services.pipeline.citations.formats.work_kinds import WorkKind, kind_of
from switchyard.services.pipeline.citations.reference import Person, Reference

ARTICLE = Reference(
    text="Lamport, L. (1978). Time, clocks. Communications of the ACM, 21(7), 558–565.",
    authors=(Person("Lamport", "L."), Person("van der Berg", "A. B.")),
    title="Time, clocks, and BERT",
    container="Communications of the ACM",
    year=1978,
    volume="21",
    issue="7",
    pages="558–565",
    doi="10.1145/359545.359563",
    language="en",
)
HOSTILE_TITLE = (
    r'}, title = {50% of {DNA} & $x_1^2$ ~ #1 \input{/etc/passwd} "and" <b>]]>&amp; @book{evil,'
)
TEXTS_WITH_SIGNS = st.text(
    st.sampled_from('{}\\"%$&#_^~@,= and<>]\x00\x01\x02\n\ud800éß中') | st.characters(), max_size=60
)


def parse_bibtex(text: str) -> BibliographyData:
    return parse_string(text, "bibtex")


def read_field(text: str, name: str) -> str:
    """Return a field of the only entry, as BibTeX reads it, without our escapes."""
    (entry,) = parse_bibtex(text).entries.values()
    value = entry.fields[name]
    for sign, word in (("{", "braceleft"), ("}", "braceright"), ("\\", "backslash")):
        value = value.replace(f"{{\\text{word}}}", f"\x00{ord(sign)}\x00")
    for sign, word in (("~", "tilde"), ("^", "circum")):
        value = value.replace(f"{{\\textascii{word}}}", sign)
    for sign in "$&#%_":
        value = value.replace(f"\\{sign}", sign)
    value = value.replace("{", "").replace("}", "")
    for sign in "{}\\":
        value = value.replace(f"\x00{ord(sign)}\x00", sign)
    return str(value)


def test_an_article_is_exported_to_bibtex():
    (entry,) = parse_bibtex(bibtex([ARTICLE])).entries.values()
    assert (entry.key, entry.type) == ("lamport1978time", "article")
    assert entry.fields["journal"] == "Communications of the ACM"
    assert entry.fields["title"] == "Time, clocks, and {BERT}"
    assert entry.fields["pages"] == "558--565"
    assert [person.last_names for person in entry.persons["author"]] == [["Lamport"], ["Berg"]]
    assert entry.persons["author"][1].prelast_names == ["van", "der"]


def test_a_hostile_title_stays_a_title():
    reference = replace(
        ARTICLE, title=HOSTILE_TITLE, authors=(Person(HOSTILE_TITLE, HOSTILE_TITLE),)
    )
    text = bibtex([reference])
    assert len(parse_bibtex(text).entries) == 1
    assert read_field(text, "title") == HOSTILE_TITLE
    assert len(next(iter(parse_bibtex(text).entries.values())).persons["author"]) == 1
    root = ET.fromstring(export_references([reference.as_json()], ReferenceFormat.TEI).content)
    assert root.findtext(f".//{{{TEI}}}analytic/{{{TEI}}}title") == HOSTILE_TITLE
    (item,) = json.loads(export_references([reference.as_json()], ReferenceFormat.CSL).content)
    assert item["title"] == HOSTILE_TITLE


@given(TEXTS_WITH_SIGNS, TEXTS_WITH_SIGNS, TEXTS_WITH_SIGNS)
def test_each_format_can_be_parsed_whatever_text_a_reference_has(
    title: str, name: str, other_text: str
):
    reference = Reference(
        text=other_text,
        title=title,
        authors=(Person(name, other_text), Person(title)),
        container=other_text,
        doi=title,
        url=name,
        notes=(other_text,),
    )
    text = bibtex([reference, reference, ARTICLE])
    entries = parse_bibtex(text.encode("utf-8", "replace").decode()).entries
    assert len(entries) == 3
    last = list(entries.values())[-1]
    assert last.fields["title"] == "Time, clocks, and {BERT}"
    references = [reference.as_json(), ARTICLE.as_json()]
    assert (
        len(
            ET.fromstring(export_references(references, ReferenceFormat.TEI).content).findall(
                f".//{{{TEI}}}biblStruct"
            )
        )
        == 2
    )
    assert len(json.loads(export_references(references, ReferenceFormat.CSL).content)) == 2
    assert len(json.loads(export_references(references, ReferenceFormat.JSON).content)) == 2


def test_an_organisation_has_no_family_name_and_et_al_is_exported():
    reference = Reference(
        text="",
        title="Tides",
        authors=(Person("Sea and Harbour Board, Inc."), Person("Roe", "R.")),
        more_authors=True,
    )
    (entry,) = parse_bibtex(bibtex([reference])).entries.values()
    board, roe, others = entry.persons["author"]
    assert str(board) == "{Sea and Harbour Board, Inc.}"
    assert (roe.last_names, others.last_names) == (["Roe"], ["others"])
    assert csl([reference])[0]["author"][0] == {"literal": "Sea and Harbour Board, Inc."}


def test_keys_are_unique_whatever_they_are_made_of():
    colliding = [
        ARTICLE,
        ARTICLE,
        replace(ARTICLE, title="Time_2"),
        Reference(text=""),
        Reference(""),
    ]
    cyrillic = Reference("", authors=(Person("Иванов", "И."),), year=1999, title="Море")
    keys = citation_keys_of([*colliding, cyrillic, cyrillic])
    assert len(set(keys)) == 7
    assert keys[:2] == ["lamport1978time", "lamport1978time_2"]
    assert all(key.isascii() and key[0].isalpha() for key in keys)
    assert keys == citation_keys_of([*colliding, cyrillic, cyrillic])


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"container": "Nature", "volume": "3"}, WorkKind.ARTICLE),
        ({"container": "Proceedings of the VLDB Endowment"}, WorkKind.PAPER),
        ({"container": "Handbook of Tides", "publisher": "Springer"}, WorkKind.CHAPTER),
        ({"publisher": "Springer"}, WorkKind.BOOK),
        ({"publisher": "MIT", "notes": ("PhD thesis",)}, WorkKind.THESIS),
        ({"publisher": "NASA", "notes": ("Technical report",)}, WorkKind.REPORT),
        ({"container": "arXiv preprint arXiv:1706.03762"}, WorkKind.PREPRINT),
        ({"arxiv_id": "1706.03762"}, WorkKind.PREPRINT),
        ({"url": "https://example.org"}, WorkKind.WEB),
        ({}, WorkKind.OTHER),
    ],
)
def test_the_kind_of_a_work_follows_from_its_fields(fields, kind):
    assert kind_of(Reference(text="", title="A title", **fields)) is kind


def test_a_reference_is_exported_with_the_identifiers_of_its_linked_work():
    work = CitedWork.from_fields(doi="10.1000/1", arxiv_id="1706.03762", title="Another title")
    link = WorkLink(LinkStatus.LINKED, "search", "openalex", 0.9, work).as_json()
    stored = {**replace(ARTICLE, doi="").as_json(), "link": link}
    (item,) = json.loads(export_references([stored], ReferenceFormat.CSL).content)
    assert (item["DOI"], item["archive_location"]) == ("10.1000/1", "1706.03762")
    assert item["title"] == ARTICLE.title
    assert WorkLink.from_json(link).as_json() == link
    assert work.id == "doi:10.1000/1"


def test_labels_of_the_reference_list_are_in_tei():
    root = ET.fromstring(
        export_references([{**ARTICLE.as_json(), "label": "12"}], ReferenceFormat.TEI).content
    )
    (entry,) = root.findall(f".//{{{TEI}}}biblStruct")
    assert entry.get("n") == "12"
    assert entry.findtext(f".//{{{TEI}}}idno[@type='DOI']") == ARTICLE.doi


def test_no_references_are_an_empty_list_in_each_format():
    assert bibtex([]) == ""
    assert json.loads(export_references([], ReferenceFormat.CSL).content) == []
    assert ET.fromstring(export_references([], ReferenceFormat.TEI).content).tag == f"{{{TEI}}}TEI"
