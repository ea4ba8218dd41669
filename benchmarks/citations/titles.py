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
        if rng.random() < 0.35:  # most titles are long
            first += self._joint(language) + self._phrase(language)
        if roll < 0.26:
            second = self._phrase(language)
            if rng.random() < 0.3:
                second += self._joint(language) + self._phrase(language)
            joint = rng.choice([": ", ": ", ": ", ": ", " – ", ". ", ". ", " : ", "; "])
            first += joint + (second[0].upper() + second[1:] if joint == ". " or rng.random() < 0.5 else second)  # fmt: skip
        elif roll < 0.31:
            first += "?"
        elif roll < 0.35:
            second = self._phrase(language)
            first += "? " + second[0].upper() + second[1:]
        if rng.random() < 0.02:
            first += rng.choice([", ", ", ", " "]) + str(rng.randint(1900, 2024))
        elif rng.random() < 0.08:
            first += rng.choice(
                [
                    f", {rng.randint(1400, 2024)}",
                    f", {rng.randint(1950, 2024)}",
                    f" {rng.randint(1950, 2024)}",
                    f", {rng.randint(1400, 1899)}-{rng.randint(1900, 2020)}",
                    f" ({rng.randint(1400, 1899)}–{rng.randint(1900, 2020)})",
                    f", version {rng.randint(1, 9)}.{rng.randint(0, 9)}",
                    " (abstract)",
                    " [in Chinese]",
                    f" ({self.noun()} and {self.noun()})",
                    f" ({self.noun().capitalize()}: {self.noun().capitalize()})",
                    f" ({self._acronym()})",
                    f": {self.noun()}, {self.noun()}, and {self.noun()}",
                    " I",
                    " III",
                    ": a reply",
                    f", volume {rng.randint(1, 5)}",
                    f". Part {rng.randint(1, 3)}",
                    f" in the {rng.randint(15, 20)}th and {rng.randint(20, 21)}st centuries",
                    f" of {rng.randint(1500, 2020)}",
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

    def noun(self) -> str:
        """A word of a field."""
        return self._rng.choice(words("en"))

    def _joint(self, language: str) -> str:
        """What a title's two parts are joined by."""
        joints = {
            "en": [" in ", " in ", " in the ", " of ", " for ", " and ", " with ", ", with ", " under ", " on ", " from ", " by ", " among ", " between ", ", and ", " & ", " as ", " to ", " during ", ", "],
            "de": [" in der ", " und ", " im ", " des ", " bei "], "fr": [" dans ", " et ", " en ", " sur ", " de l’"], "es": [" en ", " y ", " de ", " del "], "it": [" in ", " e ", " nel ", " in onore di "], "pt": [" em ", " e ", " no ", " na "],
        }  # fmt: skip
        return self._rng.choice(joints[language])

    def _phrase(self, language: str) -> str:
        rng = self._rng
        pool = words(language)
        rare = rng.random() < 0.12

        def noun() -> str:
            return rng.choice(pool)

        def some() -> str:
            plain = " ".join(noun() for _ in range(rng.choice([1, 1, 2, 2, 3])))
            return self._quoted(self._rare(plain) if rare else plain)

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
                lambda: (
                    f"in {rng.choice(['vivo', 'vitro', 'search of', 'the', 'defence of', 'situ', 'the wake of'])} {some()} {noun()}"
                ),
                lambda: f"{some()}-{noun()} {some()} in {noun()}",
                lambda: f"{some()} in {noun()} {some()}",
                lambda: f"{self._person()} and the {some()}",
                lambda: f"{some()} of {self._person()}, {noun()} of {self._proper()}",
                lambda: f"{some()}'s {some()}",
                lambda: f"{noun()} {rng.randint(1900, 2020)}: {some()} of {some()}",
                lambda: (
                    f"{noun()} {noun()}, {self._proper()}, {rng.choice(['New Zealand', 'Eastern Australia', 'South Africa', 'USA', 'California'])}"
                ),
                lambda: f"{some()} {rng.choice(['I', 'II', '2', '12', '1.2', 'A'])} {noun()}",
                lambda: (
                    f"{rng.choice(['global', 'annual', 'national', 'first', 'final', 'world'])} {noun()} {rng.choice(['report', 'programs', 'statistics', 'survey', 'guidelines', 'review'])}{rng.choice(['', '', f' {rng.randint(1950, 2024)}', f', {rng.randint(1950, 2024)}'])}"
                ),
                lambda: f"how {noun()} really {noun()}",
                lambda: (
                    f"{rng.choice(['what', 'why', 'when', 'where', 'who', 'is', 'are', 'does', 'can'])} {some()} {noun()}"
                ),
                lambda: f"introduction to {some()}",
                lambda: f"handbook of {some()}",
                lambda: f"the {some()}",
                lambda: f"{self._proper()} and the {some()}",
                noun,
                lambda: f"proceedings of {some()}",
                lambda: f"review of {some()} in {noun()} journals",
            ]
            weights = [4, 4, 3, 4, 4, 2, 2, 3, 2, 2, 2, 2, 1, 4, 3, 1, 3, 3, 1, 1, 1, 0.5, 0.5, 1.5, 1, 0.5, 1, 1, 1, 2, 1, 1, 0.2, 0.2]  # fmt: skip
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

    def _quoted(self, text: str) -> str:
        """Now and then, words that the title quotes."""
        if self._rng.random() > 0.04:
            return text
        opening, closing = self._rng.choice([("‘", "’"), ("“", "”"), ('"', '"'), ("'", "'"), ("«", "»")])  # fmt: skip
        return f"{opening}{text}{closing}"

    def _rare(self, text: str) -> str:
        """Some of the words that only one field has: formulae, species, gene names."""
        rng = self._rng
        rare = rng.choice([
            "TNF-α", "CO2", "H2O", "p53", "Escherichia coli", "Drosophila melanogaster", "LaTeX", "UNIX", "COVID-19", "3D", "2-D", "IL-6",
            "PM10", "RNAi", "Th-1", "χ(2)", "vitamin D", "Modula/R", "calcium/vitamin D", "p38 MAPK", "T-cell", "1,25-dihydroxycholecalciferol", "Crohn's disease", "mRNA", "21st-century", "18F-FDG", "c-Myc", "5-HT2A", "80/20", "12 V", "10%", "St. John's", "(2+1)-dimensional", "pre- and post-war",
            "NP-complete", "SU(2)", "L1", "GaAs", "YBa2Cu3O7", "Saccharomyces cerevisiae", "C++", "XML", "HIV/AIDS", "β-decay", "k-means",
        ])  # fmt: skip
        return f"{text} {rare}" if rng.random() < 0.5 else f"{rare} {text}"

    def _person(self) -> str:
        person = self._names.one("en")
        return f"{person.given[0]} {person.family}"

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
