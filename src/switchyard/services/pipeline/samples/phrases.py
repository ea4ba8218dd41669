"""Generate the text of sample documents, in several languages, from lists of phrases; the same seed
gives the same text."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from random import Random
from typing import Any

RIGHT_TO_LEFT = frozenset({"he"})


@dataclass(frozen=True, slots=True)
class FakeCitation:
    """A work that a generated document cites."""

    label: str
    text: str


class TextGenerator:
    """Generates sentences in one language on one subject, with one random generator."""

    def __init__(self, random: Random, language: str) -> None:
        phrases = _phrases()
        self._random = random
        self._names: dict[str, list[str]] = phrases["names"]
        self._lists: dict[str, Any] = phrases[language]
        self._subject: dict[str, Any] = random.choice(self._lists["subjects"])
        self.language = language
        self.is_spaced: bool = self._lists.get("spaced", True)
        """Whether spaces separate words, so that a line can break between them."""
        self.is_rtl = language in RIGHT_TO_LEFT

    @property
    def subject(self) -> str:
        """What the text is about: energy, health, …"""
        name: str = self._subject["name"]
        return name

    def word(self, name: str) -> str:
        """Return a fixed word of documents, in this language: `abstract`, `figure`, `total`, …."""
        word: str = self._lists["words"][name]
        return word

    def title(self) -> str:
        return self._one(self._subject["titles"])

    def items(self) -> list[str]:
        """Return things that are sold, in some order."""
        items = list(self._subject["items"])
        self._random.shuffle(items)
        return items

    def headings(self, count: int) -> list[str]:
        """Return different headings, in the order of the list."""
        all_headings: list[str] = self._lists["headings"]
        indices = sorted(
            self._random.sample(range(len(all_headings)), min(count, len(all_headings)))
        )
        return [all_headings[index] for index in indices]

    def sentence(self) -> str:
        lead, tail = self._one(self._lists["leads"]), self._one(self._lists["tails"])
        subject = self._one(self._subject["subjects"])
        if self._lists.get("verb_first"):
            verb, noun = self._one(self._subject["verbs"]), self._one(self._subject["objects"])
            sentence = f"{lead} {verb} {subject} {noun} {tail}"
        elif self.is_spaced:
            sentence = f"{lead}, {subject} {self._one(self._subject['predicates'])} {tail}"
        else:
            sentence = f"{lead}，{subject}{self._one(self._subject['predicates'])}，{tail}"
        return f"{sentence}{self._lists['stop']}"

    def paragraph(self, min_sentences: int = 3, max_sentences: int = 6) -> str:
        count = self._random.randint(min_sentences, max_sentences)
        separator = " " if self.is_spaced else ""
        return separator.join(self.sentence() for _ in range(count))

    def person(self) -> str:
        return f"{self._one(self._names['given'])} {self._one(self._names['family'])}"

    def company(self) -> str:
        return self._one(self._names["companies"])

    def reference(self, number: int) -> FakeCitation:
        """Return an entry of a list of references, as journals print them."""
        people = ", ".join(self.person() for _ in range(self._random.randint(1, 3)))
        first_page = self._random.randint(1, 900)
        text = (
            f"{people}: {self.title()}. {self._one(self._names['journals'])} "
            f"{self._random.randint(3, 60)} ({self._random.randint(1, 6)}), "
            f"{first_page}-{first_page + self._random.randint(4, 30)} "
            f"({self._random.randint(1975, 2024)})."
        )
        return FakeCitation(f"[{number}]", text)

    def _one(self, choices: list[str]) -> str:
        return self._random.choice(choices)


def languages() -> tuple[str, ...]:
    """Return the languages in which documents can be made."""
    return tuple(name for name in _phrases() if name != "names")


@cache
def _phrases() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("phrases.toml").read_text("utf-8"))
