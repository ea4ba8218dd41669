"""Reading a text takes time in proportion to its length, whatever it is made of."""

import json
import subprocess
import sys
import unicodedata

import pytest

from switchyard.services.pipeline.text.extractive_summary import MAX_CANDIDATES, summarize
from switchyard.services.pipeline.text.plain_text import sentences, words
from tests.support.hostile_texts import SHAPES

CALL = (sys.executable, "-m", "tests.support.hostile_texts")
WITHIN = 300.0
"""Seconds until its process is killed, whatever else the machine does."""

pytestmark = pytest.mark.timeout(WITHIN + 60)


def cost(*sizes: int, shapes: tuple[str, ...] = ()) -> dict[str, list[float]]:
    """Return the processor seconds for each shape of text, by its number of characters."""
    done = subprocess.run(
        [*CALL, ",".join(map(str, sizes)), *shapes], capture_output=True, timeout=WITHIN, check=True
    )
    seconds_by_text: dict[str, list[float]] = json.loads(done.stdout)
    return seconds_by_text


@pytest.mark.parametrize(
    ("characters", "max_seconds"), [(25_000, 0.7), pytest.param(200_000, 5, marks=pytest.mark.long)]
)
def test_no_text_takes_more_than_seconds(characters: int, max_seconds: float) -> None:
    spent = cost(characters)
    assert {shape: each for shape, each in spent.items() if max(each) > max_seconds} == {}


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
def test_four_times_the_text_takes_about_four_times_as_long(shape: str) -> None:
    """Time that grows with the square would be 16 times as long."""
    less, more = cost(80_000, 320_000, shapes=(shape,))[shape]
    assert more < 9 * max(less, 0.05)


def test_a_run_of_dots_ends_a_sentence_once() -> None:
    assert sentences("So be it..... Then it was...not. Who?!... Me.") == [
        "So be it.....",
        "Then it was...not.",
        "Who?!...",
        "Me.",
    ]


def test_accents_fold_as_they_do_for_the_text_as_a_whole() -> None:
    for text in (
        "Ångström naïve Größe",
        "हिन्दी ज़्यादा",
        "がぎぐ か\u3099",
        "ﬁne ½ Ⅷ",
        "e\u0323\u0301x",
    ):
        book = "".join(
            char for char in unicodedata.normalize("NFKD", text) if unicodedata.combining(char) < 10
        )
        folded = unicodedata.normalize("NFC", book.casefold())
        assert "".join(words(text)) == "".join(words(folded))


def test_a_summary_of_words_without_end_is_short() -> None:
    endless = ("x" * 100_000 + " ") * 6 + "."
    text = f"{endless} A sentence of some words is here. {endless}"
    assert len(summarize([text])) < 1_000


def test_a_long_text_is_thinned_out_evenly() -> None:
    pages = [
        f"The sentence number{number} speaks of thing{number} alone."
        for number in range(3 * MAX_CANDIDATES)
    ]
    summary = summarize([" ".join(pages)])
    assert summary.count(".") == 5
