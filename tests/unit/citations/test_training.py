"""The model is trained from scratch, and measured on references that it has not seen."""

import random

import pytest

from benchmarks.citations.__main__ import train
from benchmarks.citations.evaluation import evaluated, truth
from benchmarks.citations.faults import with_faults
from benchmarks.citations.labelling import labelled
from benchmarks.citations.lists import listed
from benchmarks.citations.works import Works
from benchmarks.citations.writing import Writer, styles
from switchyard.services.pipeline.citations.offline_parser import OfflineParser
from switchyard.services.pipeline.citations.tokens import clean_reference


def test_there_are_forty_styles_to_learn_from_and_others_held_back():
    training_styles, held_out_styles = styles()
    assert len(training_styles) >= 40
    assert len(held_out_styles) >= 10
    assert not {style.title for style in training_styles} & {
        style.title for style in held_out_styles
    }


def test_held_out_works_name_no_listed_publisher_of_those_to_learn_from():
    def collect_publishers(*, held_out: bool) -> set[str]:
        works = Works(1, held_out=held_out)
        first_works = (works.next() for _ in range(400))
        return {
            work.fields["publisher"] for work in first_works if work.kind in ("book", "chapter")
        }

    common = collect_publishers(held_out=False) & collect_publishers(held_out=True)
    assert not common & set(listed("publishers"))  # the others are made up for each work


def test_the_same_seed_makes_the_same_references():
    def write_references() -> list[str]:
        rng = random.Random(5)
        works, writer = Works(5), Writer(rng, vary=True)
        return [with_faults(writer.write(works.next(), styles()[0][0]), rng)[0] for _ in range(20)]

    assert write_references() == write_references()


def test_each_token_has_the_label_of_its_letters_through_all_faults():
    rng = random.Random(9)
    works, writer = Works(9), Writer(rng, vary=True)
    for number in range(300):
        style = styles()[0][number % len(styles()[0])]
        work = works.next()
        text, labels = with_faults(writer.write(work, style), rng, share=1)
        tokens, token_labels = labelled(text, labels)
        years = [
            token.text for token, label in zip(tokens, token_labels, strict=True) if label == "year"
        ]
        assert not years or years[0][:4] in work.fields["year"]
        assert len(labels) == len(text)
        assert all(clean_reference(text)[token.start : token.end] == token.text for token in tokens)


def test_the_truth_of_a_made_up_reference_is_its_fields():
    text = "Smith, J. (2001). A title. Nature, 12, 3-4."
    spans = [("Smith", "family"), (", ", "asep"), ("J.", "given"), (" (", "o"), ("2001", "year"),
             ("). ", "o"), ("A title", "title"), (". ", "o"), ("Nature", "container"), (", ", "o"),
             ("12", "volume"), (", ", "o"), ("3-4", "pages"), (".", "o")]  # fmt: skip
    assert "".join(piece for piece, _ in spans) == text
    true_labels = truth(text, [label for piece, label in spans for _ in piece])
    assert (true_labels.title, true_labels.container, true_labels.pages) == (
        "A title",
        "Nature",
        "3–4",
    )
    assert str(true_labels.authors[0]) == "Smith, J."


def test_the_model_of_the_package_parses_styles_that_it_has_never_seen():
    report = evaluated(OfflineParser(), per_style=15, seed=11)
    assert report.total.f1 > 0.93
    for style, score in report.by_style.items():
        assert score.f1 > 0.80, style
    assert report.by_field["title"].f1 > 0.9
    assert report.by_field["authors"].f1 > 0.85


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_model_is_trained_from_nothing(tmp_path):
    path = tmp_path / "small.crfsuite"
    train(path, count=400, iterations=25)
    assert evaluated(OfflineParser(path), per_style=4).total.f1 > 0.6
