"""Titles: words of a field in the order of a language."""

import random
from collections.abc import Callable

from benchmarks.citations.lists import listed, words
from benchmarks.citations.names import Names


class Titles:
    """Titles one after the other, seeded."""

    def __init__(self, rng: random.Random, names: Names) -> None:
        self._rng = rng
        self._names = names

    def title(self, language: str) -> str:
        """A title as they are: words of the field in the order of the language, often with a subtitle."""
        rng = self._rng
        first = self._phrase(language)
        roll = rng.random()
        if roll < 0.22:
            first += rng.choice([": ", ": ", ": ", " – ", ". "]) + self._phrase(language)
        elif roll < 0.27:
            first += "?"
        if rng.random() < 0.04:
            first += rng.choice(
                [
                    " (I)",
                    ", Part II",
                    " – a review",
                    ", 1945–1990",
                    ": 1789-1848",
                    " (1990–2010)",
                    " II",
                    " in the 1990s",
                ]
            )
        return first[0].upper() + first[1:]

    def _phrase(self, language: str) -> str:
        rng = self._rng
        pool = words(language)
        rare = rng.random() < 0.12

        def noun() -> str:
            return rng.choice(pool)

        def some() -> str:
            plain = " ".join(noun() for _ in range(rng.choice([1, 1, 2, 2, 3])))
            return self._rare(plain) if rare else plain

        if language == "en":
            forms: list[Callable[[], str]] = [
                lambda: f"{some()} {some()}",
                lambda: f"{some()} and {some()}",
                lambda: f"the {some()} of {some()}",
                lambda: f"{some()} of {some()} in {some()}",
                lambda: f"{some()} for {some()} {noun()}",
                lambda: f"on the {some()} of {some()}",
                lambda: f"a {some()} approach to {some()}",
                lambda: f"{some()} in {self._proper()}",
                lambda: f"{noun()}, {noun()}, and {noun()}",
                lambda: f"towards {some()} with {some()}",
                lambda: f"the {noun()} of {self._proper()}",
                lambda: f"{self._acronym()}: {some()} for {some()}",
                lambda: f"how {noun()} shapes {some()}",
                lambda: f"{some()} using {some()} and {some()} from {some()}",
                lambda: f"effects of {some()} on {some()} among {some()}: a {some()} of {some()}",
                lambda: f"introduction to {some()}",
                lambda: f"handbook of {some()}",
                lambda: f"the {some()}",
                lambda: f"{self._proper()} and the {some()}",
                noun,
                lambda: f"proceedings of {some()}",
                lambda: f"review of {some()} in {noun()} journals",
            ]
            weights = [4, 4, 3, 4, 4, 2, 2, 3, 2, 2, 2, 2, 1, 4, 3, 1, 1, 2, 1, 1, 0.2, 0.2]
            return rng.choices(forms, weights)[0]()
        joins = {
            "de": [" und ", " der ", " des ", " in der ", " zur ", " im ", ", ", " für ", " von "],
            "fr": [
                " et ",
                " de la ",
                " des ",
                " du ",
                " dans la ",
                " en ",
                ", ",
                " de l'",
                " pour ",
            ],
            "es": [" y ", " de la ", " de los ", " del ", " en ", " para ", ", "],
            "it": [" e ", " della ", " dei ", " del ", " in ", " nella ", ", "],
            "pt": [" e ", " da ", " dos ", " do ", " em ", " na ", " para ", ", "],
        }[language]
        article = {"de": ["die ", "das ", "der ", "zur ", "über die ", ""], "fr": ["la ", "le ", "les ", "l'", ""], "es": ["la ", "el ", "los ", ""],
                   "it": ["la ", "il ", "le ", ""], "pt": ["a ", "o ", "os ", ""]}[language]  # fmt: skip
        phrase = rng.choice([*article, ""]) + noun()
        for _ in range(rng.choice([1, 1, 2, 2, 3, 4])):
            phrase += rng.choice(joins) + noun()
        return phrase

    def _rare(self, text: str) -> str:
        """Some of the words that only one field has: formulae, species, gene names."""
        rng = self._rng
        rare = rng.choice([
            "TNF-α", "CO2", "H2O", "p53", "Escherichia coli", "Drosophila melanogaster", "LaTeX", "UNIX", "COVID-19", "3D", "2-D", "IL-6",
            "NP-complete", "SU(2)", "L1", "GaAs", "YBa2Cu3O7", "Saccharomyces cerevisiae", "C++", "XML", "HIV/AIDS", "β-decay", "k-means",
        ])  # fmt: skip
        return f"{text} {rare}" if rng.random() < 0.5 else f"{rare} {text}"

    def _proper(self) -> str:
        rng = self._rng
        return rng.choice([
            self._names.one("en").family, rng.choice(listed("places")).split(",")[0],
            rng.choice(["Africa", "Europe", "Asia", "America", "Germany", "France", "Brazil", "China", "India", "Japan", "Mexico", "Spain", "Italy", "Russia", "England", "Scotland", "Poland", "Turkey", "Iran", "Nigeria", "Kenya", "Chile", "Peru", "Canada", "Australia", "Byzantium", "Weimar"]),
        ])  # fmt: skip

    def _acronym(self) -> str:
        rng = self._rng
        letters = "".join(rng.choices("ABCDEFGILMNOPRST", k=rng.randint(3, 6)))
        return letters if rng.random() < 0.6 else letters.capitalize()
