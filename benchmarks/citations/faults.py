"""What the text of a PDF does to a reference: lines cut with hyphens, spaces lost and won, numbers of lines and of the reference."""

import random
from collections.abc import Sequence

from benchmarks.citations.writing import Piece

# Signs, each with its label.
Letters = list[tuple[str, str]]


def with_faults(
    pieces: Sequence[Piece], rng: random.Random, *, share: float = 0.5
) -> tuple[str, list[str]]:
    """The text and a label for each character; a share of the references gets faults, the others stay as they are."""
    text = "".join(piece for piece, _ in pieces)
    labels = [label for piece, label in pieces for _ in piece]
    if rng.random() < 0.25:
        mark = rng.choice(["[{}] ", "{}. ", "({}) ", "{} ", "[{}]", "{}) ", "• ", "– "]).format(
            rng.randint(1, 180)
        )
        text, labels = mark + text, ["o"] * len(mark) + labels
    if rng.random() > share:
        return text, labels
    letters = [(sign, label) for sign, label in zip(text, labels, strict=True)]
    kind = rng.random()
    if kind < 0.35:
        letters = _cut_lines(letters, rng)
    if kind > 0.25 and kind < 0.5:
        letters = _lost_spaces(letters, rng)
    if 0.45 < kind < 0.6:
        letters = _won_spaces(letters, rng)
    if 0.6 < kind < 0.68:
        letters = _line_numbers(letters, rng)
    if kind > 0.65:
        letters = _signs(letters, rng)
    return "".join(sign for sign, _ in letters), [label for _, label in letters]


def _cut_lines(letters: Letters, rng: random.Random) -> Letters:
    width = rng.randint(38, 90)
    cut: Letters = []
    column = 0
    for place, (sign, label) in enumerate(letters):
        column += 1
        if column > width and sign == " ":
            cut.append(("\n", label))
            column = 0
        elif (
            column > width
            and 2 < place < len(letters) - 3
            and sign.isalpha()
            and all(letters[near][0].islower() for near in range(place - 2, place + 3))
        ):
            cut += [(sign, label), ("-", label), ("\n", label)]
            column = 0
        else:
            cut.append((sign, label))
    return cut


def _lost_spaces(letters: Letters, rng: random.Random) -> Letters:
    return [
        (sign, label)
        for place, (sign, label) in enumerate(letters)
        if not (sign == " " and place and letters[place - 1][0] in ".,:;)" and rng.random() < 0.5)
    ]


def _won_spaces(letters: Letters, rng: random.Random) -> Letters:
    won: Letters = []
    for sign, label in letters:
        if sign in ".,:;()-–" and rng.random() < 0.15:
            won.append((" ", label))
        won.append((sign, label))
        if sign in "(-–" and rng.random() < 0.1:
            won.append((" ", label))
    return won


def _line_numbers(letters: Letters, rng: random.Random) -> Letters:
    number, width = rng.randint(1, 900), rng.randint(45, 80)
    numbered: Letters = []
    column = 0
    for sign, label in letters:
        column += 1
        numbered.append((sign, label))
        if column > width and sign == " ":
            numbered += [(digit, "o") for digit in f"{number} "]
            number, column = number + 1, 0
    return numbered


def _signs(letters: Letters, rng: random.Random) -> Letters:
    """Quotation marks, dashes and accents as a converter leaves them; the end lost."""
    changes = {"“": '"', "”": '"', "’": "'", "‘": "'", "–": "-"}
    if rng.random() < 0.3:
        changes |= {"“": "``", "”": "''"}
    if rng.random() < 0.15:
        changes |= {"ä": "a", "ö": "o", "ü": "u", "é": "e", "è": "e", "ñ": "n", "ç": "c"}
    changed = [(sign, label) for old, label in letters for sign in changes.get(old, old)]
    return changed[: -rng.randint(1, 3)] if rng.random() < 0.2 and len(changed) > 40 else changed
