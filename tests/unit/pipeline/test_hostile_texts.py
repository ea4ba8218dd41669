"""Reading a text takes time in proportion to its length, whatever it is made of."""

import json
import subprocess
import sys
import unicodedata

import pytest

from switchyard.services.pipeline.text.extractive_summary import MAX_CANDIDATES, summarize
from switchyard.services.pipeline.text.plain_text import sentences, words
from tests.support.hostile_texts import SHAPES

COMMAND = (sys.executable, "-m", "tests.support.hostile_texts")
PROCESS_TIMEOUT = 300.0
"""Seconds until the measuring process is killed: many, for a machine with other work."""

pytestmark = pytest.mark.timeout(PROCESS_TIMEOUT + 60)


def measure_seconds(*sizes: int, shapes: tuple[str, ...] = ()) -> dict[str, list[float]]:
    """Return the processor seconds for each shape of text, by its number of characters."""
    process = subprocess.run(
        [*COMMAND, ",".join(map(str, sizes)), *shapes],
        capture_output=True,
        timeout=PROCESS_TIMEOUT,
        check=True,
    )
    seconds_by_shape: dict[str, list[float]] = json.loads(process.stdout)
    return seconds_by_shape


@pytest.mark.parametrize(
    ("characters", "max_seconds"), [(25_000, 0.7), pytest.param(200_000, 5, marks=pytest.mark.long)]
)
def test_no_shape_of_text_takes_long_to_read(characters: int, max_seconds: float) -> None:
    seconds_by_shape = measure_seconds(characters)
    assert {
        shape: seconds for shape, seconds in seconds_by_shape.items() if max(seconds) > max_seconds
    } == {}


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
def test_four_times_the_text_takes_about_four_times_as_long(shape: str) -> None:
    """Time that grows with the square would be 16 times as long."""
    base_seconds, quadrupled_seconds = measure_seconds(80_000, 320_000, shapes=(shape,))[shape]
    assert quadrupled_seconds < 9 * max(base_seconds, 0.05)


def test_a_run_of_dots_ends_a_sentence_once() -> None:
    assert sentences("So be it..... Then it was...not. Who?!... Me.") == [
        "So be it.....",
        "Then it was...not.",
        "Who?!...",
        "Me.",
    ]


def test_accents_are_folded_as_normalising_the_whole_text_does() -> None:
    for text in (
        "Ångström naïve Größe",
        "हिन्दी ज़्यादा",
        "がぎぐ か\u3099",
        "ﬁne ½ Ⅷ",
        "e\u0323\u0301x",
    ):
        decomposed = "".join(
            char for char in unicodedata.normalize("NFKD", text) if unicodedata.combining(char) < 10
        )
        folded = unicodedata.normalize("NFC", decomposed.casefold())
        assert "".join(words(text)) == "".join(words(folded))


def test_a_summary_of_endless_words_is_short() -> None:
    endless = ("x" * 100_000 + " ") * 6 + "."
    text = f"{endless} A sentence of some words is here. {endless}"
    assert len(summarize([text])) < 1_000


def test_a_long_text_is_thinned_out_evenly() -> None:
    numbered = [
        f"The sentence number{number} speaks of thing{number} alone."
        for number in range(3 * MAX_CANDIDATES)
    ]
    summary = summarize([" ".join(numbered)])
    assert summary.count(".") == 5
