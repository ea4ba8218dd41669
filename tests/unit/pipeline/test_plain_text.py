"""Text is cleaned, and cut into paragraphs, sentences and words, in any script."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.services.pipeline.index.word_index import full_text_query
from switchyard.services.pipeline.text import plain_text
from switchyard.services.pipeline.text.plain_text import (
    clean,
    content_words,
    count_words,
    has_words,
    normalised,
    paragraphs,
    sentences,
    shorten,
    words,
)
from switchyard.services.pipeline.text.stems import language_of, query_words


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_cleaned_text_can_be_stored_anywhere(text: str):
    cleaned = clean(text)
    assert "\0" not in cleaned
    assert json.loads(json.dumps(cleaned).encode()) == cleaned
    assert cleaned.encode().decode() == cleaned  # no lone surrogate is left


@given(st.text() | st.text(alphabet="・゠\u3099a_ -1¹漢"))
def test_a_text_has_words_where_any_can_be_counted(text: str):
    assert has_words(text) == bool(count_words(text))


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_cleaning_twice_is_cleaning_once(text: str):
    assert clean(clean(text)) == clean(text)


def test_nul_and_lone_surrogates_are_cleaned_away():
    assert clean("a\0b\ud800c\udfff\udfffd") == "ab\ufffdc\ufffdd"


def test_a_word_broken_at_a_line_end_is_whole_again():
    assert paragraphs("an impor-\ntant word\n\nnext") == ["an important word", "next"]


def test_chinese_lines_are_joined_without_a_space():
    assert paragraphs("我们在北\n京见面。") == ["我们在北京见面。"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("Dr. Smith met J. Doe in the U.S. yesterday. It rained.", 2),
        ("Am 3. Oktober z. B. war es kalt. Dann nicht mehr.", 2),
        ("It cost 3.50 dollars. Nobody paid.", 2),
        ('He said "stop." Then he left.', 2),
        ("ما هذا؟ هذا كتاب. والسلام", ["ما هذا؟", "هذا كتاب.", "والسلام"]),
        ("我爱你。你呢？好！", ["我爱你。", "你呢？", "好！"]),
        ("यह एक वाक्य है। यह दूसरा है।", 2),
        ("", []),
        ("...", ["..."]),
    ],
)
def test_sentences_end_where_readers_end_them(text: str, expected: list[str] | int):
    parts = sentences(text)
    assert parts == expected if isinstance(expected, list) else len(parts) == expected, parts


@given(st.text())
def test_no_character_is_lost_between_sentences(text: str):
    line = " ".join(text.split())
    assert "".join("".join(sentences(line)).split()) == "".join(line.split())


def test_words_are_the_same_whatever_their_case_accents_and_vowel_marks():
    assert words("Café CAFE\u0301 ﬁne") == ["cafe", "cafe", "fine"]
    assert words("حَبيبي") == words("حبيبي")
    assert words("STRASSE Straße") == ["strasse", "strasse"]


def test_numbers_that_stand_raised_or_lowered_hide_no_word():
    assert words("Each day¹² and night,³⁻⁵ x²y²; 10⁵") == [
        *("each", "day", "12", "and", "night", "3", "5", "x", "2", "y", "2", "10", "5")
    ]
    assert words("CO₂ of sample₁₂, H₂O") == ["co2", "co", "of", "sample12", "sample", "h2o"]
    hostile = "₁" * 100_000 + "a" * 100_000 + "a₁" * 100_000
    assert words(hostile)


def test_chinese_words_are_pairs_of_characters():
    assert words("机器学习") == ["机器", "器学", "学习"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the history of the tides", ["history", "tides"]),
        ("die Geschichte der Gezeiten", ["geschichte", "gezeiten"]),
        ("l'histoire des marées", ["l'histoire", "marees"]),
        ("über Gezeiten", ["gezeiten"]),
        ("l'or des Incas est dans la vitrine", ["l'or", "incas", "vitrine"]),
        ("هذا كتاب عن البحر", ["كتاب", "عن", "البحر"]),
        ("история о море", ["история", "море"]),
        ("sea level", ["sea", "level"]),
        ("the war at sea", ["war", "sea"]),
        ("sea level in the Miocene era", ["sea", "level", "miocene", "era"]),
        ("die casting of zinc", ["die", "casting", "zinc"]),
        ("die Höhe, die das Wasser hat", ["hohe", "wasser"]),
        ("que sea la mar", ["mar"]),
    ],
)
def test_content_words_leave_out_the_words_that_every_text_has(text: str, expected: list[str]):
    assert content_words(text) == expected


def test_a_word_of_two_languages_is_searched_for_in_a_question_of_unknown_language():
    assert language_of("sea levels") is None
    # "sea" is a stop word in Spanish; its French stem is "se".
    assert full_text_query("sea level") == "sea se level"
    assert [word[0] for word in query_words("the war at sea", 10, None)] == ["war", "sea"]


def test_count_of_words_takes_two_chinese_characters_for_a_word():
    assert count_words("hello 机器学习 world") == 4


def test_shortened_text_ends_at_a_word():
    assert shorten("one two three four", 12) == "one two…"
    assert shorten("short", 12) == "short"
    assert len(shorten("x" * 100, 12)) == 12


def test_both_ways_of_folding_characters_give_the_same_words(
    monkeypatch: pytest.MonkeyPatch,
):
    characters = map(chr, range(sys.maxunicode))
    folded = [char for char in characters if not unicodedata.is_normalized("NFKD", char)]
    texts = ["".join(folded[start::600]) for start in range(600)]
    expected = [(normalised(text), words(text)) for text in texts]
    monkeypatch.setattr(plain_text, "_MAX_REPLACEMENTS", 0)
    assert [(normalised(text), words(text)) for text in texts] == expected
    assert {len(text) > 20 for text in texts} == {True}
