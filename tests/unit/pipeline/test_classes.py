"""Classes by keywords and by meaning, and the file that defines them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.classes import keyword_classes, similarity_classes
from switchyard.services.pipeline.classes.class_definitions import (
    BadClasses,
    MeaningKind,
    RuleKind,
    read_definitions,
)
from switchyard.services.pipeline.index.embedder import embedder_for
from switchyard.services.pipeline.samples.article_texts import ARTICLES


def count_keywords(keywords: list[str], text: str) -> dict[str, int]:
    return dict(keyword_classes.KeywordFinder(keywords).count([text]))


@pytest.mark.parametrize(
    ("keyword", "text", "times"),
    [
        ("secret", "A secret. The secretary keeps SECRETS.", 1),
        ("patient*", "Patients and a patient's patience, impatient", 2),
        ("trade secret*", "our trade secrets; a trade secret", 2),
        ("date of birth", "Date of  birth: 1.1.; birth of date", 1),
        ("vertraulich*", "Streng vertrauliche Unterlagen", 1),
        ("numéro de sécurité sociale", "NUMERO DE SECURITE SOCIALE", 1),
        ("secret d'affaires", "un secret d’affaires", 1),
        ("конфиденциально", "Строго КОНФИДЕНЦИАЛЬНО", 1),
        ("机密", "这是机密文件", 1),
        ("身份证号", "我的身份证号码是", 1),
        ("חסוי", "מסמך חסוי.", 1),
        ("سري", "تقرير سِرِّي للغاية", 1),
        ("non-disclosure", "a non-disclosure agreement", 1),
    ],
)
def test_keywords_are_found_as_words_of_any_script(keyword: str, text: str, times: int):
    assert count_keywords([keyword], text).get(keyword, 0) == times


def test_a_word_counts_for_each_label_however_the_labels_spell_it():
    counts = count_keywords(["Résumé", "resume", "IBAN*", "iban*"], "The resume has an iban.")
    assert counts == {"Résumé": 1, "resume": 1, "IBAN*": 1, "iban*": 1}


def test_keywords_are_found_across_the_parts_of_a_long_text(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keyword_classes, "_WINDOW_SIZE", 12)
    text = "top secret plan and strictly confidential and top secret"
    assert count_keywords(["top secret", "strictly confidential", "plan"], text) == {
        "top secret": 2,
        "strictly confidential": 1,
        "plan": 1,
    }


@pytest.mark.long
def test_matching_takes_time_in_proportion_to_the_text():
    keywords = [f"{'a ' * length}b" for length in range(1, 8)] + ["a" * 30 + "*", "a*"]
    finder = keyword_classes.KeywordFinder(keywords)

    def measure_seconds(length: int) -> float:
        began = time.process_time()
        finder.count(["a " * length, "a" * length])
        return time.process_time() - began

    measure_seconds(1_000)
    assert measure_seconds(400_000) < 30 * max(measure_seconds(40_000), 0.01)


def test_the_first_label_with_enough_points_is_taken_and_says_why():
    kind = read_definitions(None).kinds["privacy"]
    assert isinstance(kind, RuleKind)
    counts = {"iban": 5, "salary": 1, "invoice": 1}
    classes = keyword_classes.classes_by_keywords("privacy", kind, counts)
    assert [(each.name, each.score) for each in classes] == [("privacy:confidential", 11.0)]
    assert classes[0].why["keywords"] == {"iban": 5, "salary": 1}
    assert classes[0].why["points"] == {"restricted": 0, "confidential": 11, "internal": 2}
    without_keywords = keyword_classes.classes_by_keywords("privacy", kind, {})
    assert [(each.name, each.score) for each in without_keywords] == [("privacy:public", 0.0)]


@pytest.mark.parametrize(
    ("article", "industry", "impact"),
    [
        ("tidal-power", "energy", "beneficial"),
        ("storing-electricity", "energy", "beneficial"),
        ("flowers-and-pollinators", "agriculture", "beneficial"),
        ("printing-press", "manufacturing", "none"),
    ],
)
async def test_articles_are_classified_by_meaning(article: str, industry: str, impact: str):
    embedder = embedder_for(Settings())
    text = next(each.text for each in ARTICLES if each.slug == article)
    passages = await embedder.embed(text.split("\n\n"))
    labels = {}
    for name in ("industry", "environmental_impact"):
        kind = read_definitions(None).kinds[name]
        assert isinstance(kind, MeaningKind)
        label_descriptions = [
            (label, description)
            for label, meaning in kind.labels.items()
            for description in meaning.descriptions
        ]
        vectors = await embedder.embed([description for _, description in label_descriptions])
        pairs = [
            (label, vector) for (label, _), vector in zip(label_descriptions, vectors, strict=True)
        ]
        similarity_by_label = similarity_classes.similarities(passages, pairs)
        labels[name] = similarity_classes.classes_by_similarity(
            name, kind, similarity_by_label, embedder.calibration.min_relevance
        )[0].label
    assert labels == {"industry": industry, "environmental_impact": impact}


def test_a_text_that_the_embedder_does_not_know_gets_no_label_by_meaning():
    kind = read_definitions(None).kinds["industry"]
    assert isinstance(kind, MeaningKind)
    similarity_by_label = similarity_classes.similarities(
        [[0.0, 0.0]], [(label, [1.0, 0.0]) for label in kind.labels]
    )
    assert (
        similarity_classes.classes_by_similarity("industry", kind, similarity_by_label, 0.15) == []
    )
    assert similarity_classes.similarities([], [("a", [1.0])]) == {"a": 0.0}


ERRORS_BY_FILE_TEXT = {
    "kinds = [": "is not TOML",
    "": "kinds: Field required",
    '[kinds.a]\nby = "magic"': "kinds.a: 'by' is none of 'rules', 'meaning'",
    "[kinds.a.labels.x]\nkeywords = {a = 1}": "kinds.a: 'by' is missing",
    '[kinds.a]\nby = "rules"\n[kinds.a.labels.x]\nat_least = 0\nkeywords = {a = 1}': (
        "kinds.a.labels.x.at_least: "
    ),
    '[kinds.a]\nby = "rules"\n[kinds.a.labels.x]\nat_least = 1\nkeywords = {"…" = 1}': "0 words",
    '[kinds.a]\nby = "rules"\n[kinds.a.labels.x]\nat_least = 1\nkeywords = {"a*b" = 1}': "the last",
    '[kinds.a]\nby = "meaning"\n[kinds.a.labels.x]\ndescriptions = ["x"]': "at least 2",
    '[kinds."A b"]\nby = "meaning"': "kinds.A b: use lower-case letters",
}


@pytest.mark.parametrize("text", ERRORS_BY_FILE_TEXT)
def test_a_bad_file_is_refused_with_the_place_that_is_wrong(tmp_path: Path, text: str):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(BadClasses, match=r"mine\.toml") as refused:
        read_definitions(path)
    assert ERRORS_BY_FILE_TEXT[text] in str(refused.value)
    assert "JOBS_CLASSES" in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(BadClasses, match="there is no file"):
        read_definitions(tmp_path / "none.toml")
