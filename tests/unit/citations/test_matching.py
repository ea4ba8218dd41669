"""Which work a reference means: scores, threshold and margin as tables."""

from __future__ import annotations

import time

import pytest

from switchyard.services.pipeline.citations.cited_works import CitedWork, LinkStatus
from switchyard.services.pipeline.citations.linking.catalogue import text_in
from switchyard.services.pipeline.citations.linking.matching import (
    THRESHOLD,
    choose_work,
    link_by_identifier,
    score,
    title_likeness,
)
from switchyard.services.pipeline.citations.linking.work_questions import LookupMethod, questions_of
from switchyard.services.pipeline.citations.reference import Person, Reference

REFERENCE = Reference(
    text="",
    authors=(Person("Lamport", "L."),),
    title="Time, clocks, and the ordering of events in a distributed system",
    container="Commun. ACM",
    year=1978,
)


def make_work(number: int = 1, **fields) -> CitedWork:
    defaults = {
        "title": REFERENCE.title,
        "authors": (Person("Lamport", "Leslie"),),
        "year": 1978,
        "container": "Communications of the ACM",
    }
    return CitedWork.from_fields(openalex=f"W{number}", **{**defaults, **fields})


@pytest.mark.parametrize(
    ("fields", "min_score", "max_score"),
    [
        ({}, 0.99, 1.0),
        ({"title": "Time, Clocks and the Ordering of Events in a Distributed System."}, 0.95, 1.0),
        ({"title": "Time, clocks"}, 0.0, 0.6),
        ({"authors": (), "year": None, "container": ""}, 0.99, 1.0),
        ({"year": 1979}, 0.9, 0.99),
        ({"year": 2005}, 0.8, 0.9),
        ({"authors": (Person("Smith", "John"),)}, 0.75, 0.85),
        ({"authors": (Person("Smith", "John"),), "year": 2005}, 0.0, 0.7),
        ({"title": "The ordering of clocks"}, 0.0, 0.5),
        ({"title": ""}, 0.0, 0.0),
    ],
)
def test_the_score_says_how_well_a_work_fits(fields, min_score, max_score):
    assert min_score <= score(REFERENCE, make_work(**fields)) <= max_score


def test_a_reference_without_a_title_fits_nothing():
    assert score(Reference(text="", year=1978), make_work()) == 0.0


def test_the_best_work_is_chosen_though_another_comes_first():
    link = choose_work(
        REFERENCE,
        [
            ("openalex", make_work(1, title="Clocks in a distributed system of events", year=1999)),
            ("openalex", make_work(2)),
        ],
    )
    assert (link.status, link.provider) == (LinkStatus.LINKED, "openalex")
    assert link.work is not None
    assert link.work.openalex == "W2"
    assert link.score >= THRESHOLD


def test_two_works_that_fit_alike_are_ambiguous_and_both_are_candidates():
    link = choose_work(REFERENCE, [("openalex", make_work(2)), ("crossref", make_work(1))])
    assert (link.status, link.work) == (LinkStatus.AMBIGUOUS, None)
    assert [candidate.work.openalex for candidate in link.candidates] == ["W1", "W2"]
    link_to_one_work = choose_work(
        REFERENCE, [("openalex", make_work(2)), ("crossref", make_work(2))]
    )
    assert link_to_one_work.status is LinkStatus.LINKED


def test_a_work_that_half_fits_is_a_candidate_and_an_unlike_one_is_not():
    half_fitting = make_work(title="Time, clocks and the order of events in systems", year=1990)
    link = choose_work(REFERENCE, [("openalex", half_fitting)])
    assert (link.status, len(link.candidates)) == (LinkStatus.AMBIGUOUS, 1)
    unlike = make_work(title="A history of the sea", year=1990, authors=(Person("Roe"),))
    assert choose_work(REFERENCE, [("openalex", unlike)]).status is LinkStatus.NOT_FOUND
    assert choose_work(REFERENCE, []).status is LinkStatus.NOT_FOUND


def test_an_identifier_that_leads_to_quite_another_title_is_not_believed():
    assert link_by_identifier(REFERENCE, "doi", "crossref", make_work()).status is LinkStatus.LINKED
    bad_link = link_by_identifier(
        REFERENCE, "doi", "crossref", make_work(title="A history of the sea")
    )
    assert (bad_link.status, len(bad_link.candidates)) == (LinkStatus.AMBIGUOUS, 1)
    assert (
        link_by_identifier(Reference(text=""), "doi", "crossref", make_work()).status
        is LinkStatus.LINKED
    )


def test_a_subtitle_that_is_left_out_costs_little():
    long_title = "Attention is all you need: a study of transformers and what became of them"
    assert (title_likeness("Attention is all you need", long_title) or 0) >= 0.9
    assert (title_likeness("Attention", long_title) or 1) < 0.5
    assert title_likeness("", long_title) is None


def test_numbers_in_titles_tell_works_apart():
    assert (title_likeness("Tables of the tides, part 2", "Tables of the tides, part 3") or 1) < 0.8
    assert title_likeness("Tables of the tides, part 2", "Tables of the Tides. Part 2") == 1.0


def test_a_reference_is_looked_up_by_its_identifiers_and_its_title():
    questions = questions_of(
        Reference(
            text="",
            title="Étude of TIDES, and harbours",
            authors=(Person("Müller", "A."),),
            year=1999,
            doi="10.1000/ABC",
            arxiv_id="1706.03762v5",
        )
    )
    assert [(question.method, question.value) for question in questions] == [
        (LookupMethod.DOI, "10.1000/abc"),
        (LookupMethod.ARXIV, "1706.03762"),
        (LookupMethod.SEARCH, "etude of tides and harbours"),
    ]
    assert questions[2].author == "muller"
    assert questions_of(Reference(text="", doi="10.48550/arXiv.1706.03762v2")) == [questions[1]]
    assert questions_of(Reference(text="", title="Sea")) == []
    questions_without_accents = questions_of(
        Reference(text="", title="Etude of tides & and harbours")
    )
    assert questions_without_accents[0].value == questions[2].value


MARKED_UP = [
    ("Genes of <i>Escherichia coli</i>", "Genes of Escherichia coli"),
    ("Genes in<i>Drosophila</i>embryos", "Genes in Drosophila embryos"),
    ("H<sub>2</sub>O and p<i>K</i>a", "H2O and pKa"),
    ("A &lt;i&gt;new&lt;/i&gt; way &amp;amp; another", "A new way & another"),
    ("Where p &lt; 0.05 and a < b > c", "Where p < 0.05 and a < b > c"),
    ("One line<br/>and another", "One line and another"),
    (
        "The <m:math xmlns='x'><m:mi>Z</m:mi>\n <m:mo>→</m:mo>\n <m:mi>K</m:mi></m:math> decay",
        "The Z→K decay",
    ),
    ("<jats:italic>N</jats:italic>-body <scp>DNA</scp>", "N-body DNA"),
    ("<math><mi>x</mi><annotation encoding='tex'>x</annotation></math> moves", "x moves"),
    ("<tex-math>$x$</tex-math><math><mi>x</mi></math> grows", "x grows"),
    ("Cut amid <mml:math", "Cut amid"),
]


@pytest.mark.parametrize(("marked_up", "plain"), MARKED_UP)
def test_markup_of_catalogues_is_removed_and_text_like_markup_stays(marked_up: str, plain: str):
    assert text_in(marked_up) == plain
    record = {"id": "doi:10.1/x", "doi": "10.1/x", "title": marked_up, "container": marked_up}
    work = CitedWork.from_json(record)
    assert (work.title, work.container) == (plain, plain)
    assert work.as_json()["title"] == plain


def test_a_formula_of_some_thousand_characters_does_not_cut_off_what_follows():
    formula = "<math>" + "<mrow><mi>x</mi></mrow>" * 200 + "</math>"
    assert text_in(f"On {formula} and more") == f"On {'x' * 200} and more"


def test_markup_that_never_ends_is_removed_quickly():
    for hostile in ("<math>", "<tex-math>", "<i>a", "</math><math ", "&amp;", "<", "<a:b"):
        began = time.process_time()
        text_in(hostile * 20_000)
        assert time.process_time() - began < 0.2, hostile
