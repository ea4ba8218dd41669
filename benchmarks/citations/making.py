"""What works of several kinds have: where they appeared, on which pages, under which identifier."""

import random
from dataclasses import dataclass, field

from benchmarks.citations.lists import listed
from benchmarks.citations.names import Name, Names
from benchmarks.citations.titles import Titles


@dataclass
class CitedWork:
    """What is cited: its fields as they may be printed, so "volume" may be missing and "pages" may be one number."""

    kind: str  # article, book, chapter, paper, thesis, report, preprint, page
    language: str
    authors: list[Name]
    fields: dict[str, str] = field(default_factory=dict)
    editors: list[Name] = field(default_factory=list)


class Making:
    """Parts of works, seeded."""

    def __init__(self, seed: int, *, held_out: bool = False) -> None:
        """With `held_out`, works of journals, publishers and places that the others never name."""
        self._rng = random.Random(seed)
        self._names = Names(self._rng)
        self._titles = Titles(self._rng, self._names)
        self._held_out = held_out

    def _of(self, name: str) -> str:
        """An entry of a list: every fifth is held back for the measurement."""
        entries = listed(name)
        return self._rng.choice(
            [entry for place, entry in enumerate(entries) if (place % 5 == 2) == self._held_out]
        )

    def _identifier(self) -> str:
        rng = self._rng
        return rng.choice([
            f"s{rng.randint(10000, 99999)}-{rng.randint(10, 99):03d}-{rng.randint(1000, 9999)}-{rng.randint(0, 9)}",
            f"j.{''.join(rng.choices('abcdefghijklmnoprstuv', k=5))}.{rng.randint(1995, 2024)}.{rng.randint(1, 12):02d}.{rng.randint(1, 150):03d}",
            f"{rng.randint(1000000, 3999999)}.{rng.randint(1000000, 3999999)}",
            f"PhysRevLett.{rng.randint(50, 130)}.{rng.randint(10000, 99999)}",
            f"S{rng.randint(1000, 9999)}-{rng.randint(1000, 9999)}({rng.randint(0, 99):02d}){rng.randint(10000, 99999)}-{rng.choice('0123456789X')}",
        ])  # fmt: skip

    def _periodical(self, work: CitedWork) -> None:
        rng = self._rng
        if rng.random() < 0.5:
            full, _, short = (part.strip() for part in self._of("journals").partition("|"))
        else:
            subject = self._of("subjects")
            full = rng.choice([
                f"Journal of {subject}", f"International Journal of {subject}", f"{subject}", f"{subject} Review", f"{subject} Letters", f"Annals of {subject}",
                f"American Journal of {subject}", f"European Journal of {subject}", f"The {subject} Quarterly", f"Advances in {subject}", f"Trends in {subject}",
                f"Studies in {subject}", f"Archives of {subject}", f"IEEE Transactions on {subject}", f"ACM Transactions on {subject}", f"Current Opinion in {subject}",
                f"Frontiers in {subject}", f"{subject} Today", f"Research in {subject}", f"British Journal of {subject}", f"{subject} & {self._of('subjects')}",
                f"Journal of {subject} and {self._of('subjects')}", f"Journal of {subject}, {self._titles.noun().capitalize()}, and {self._titles.noun().capitalize()}", f"The {subject} Journal", f"The Journal of {subject}",
                f"{subject}, Part {rng.choice('ABCI')}", f"{subject} {rng.choice('ABCDEG')}", f"Journal of {subject} {rng.choice('ABC')}", f"{subject}: Journal of the {self._of('subjects')} Society Part {rng.choice('AB')}", f"{self._titles.noun().capitalize()}-Centered {subject}",
                f"{self._titles.noun().capitalize()}", f"{self._titles.noun().capitalize()}", f"{self._titles.noun().capitalize()} and {self._titles.noun()}", f"Proceedings of the National {subject} Society", f"Transactions of the {subject} Society", f"{self._town()} {subject} Review", f"{subject} in {self._town()}",
                f"Special issue, {subject}", f"{subject}, Special Issue on {self._of('subjects')}", f"{subject} Notices", f"Miscellaneous Publications, {self._town()} Museum", f"Proceedings of the {self._town()} Academy", f"Revue de {self._titles.noun()}", f"{self._town()} Magazine",
                f"Bulletin of {subject}", f"New {subject}", f"BMC {subject}", f"Perspectives on {subject}", f"{subject}: An International Journal",
            ])  # fmt: skip
            short = ""
        if not short:
            table = dict(line.rsplit(None, 1) for line in listed("abbreviations"))
            short = " ".join(
                table.get(word, word)
                for word in full.split()
                if word.lower() not in ("of", "the", "and", "in", "on", "for", "&")
            )
        if rng.random() < 0.1:  # known by its initials
            short = rng.choice(["MNRAS", "A&A", "ApJ", "PNAS", "JAMA", "BMJ", "PRL", "ETL", "JHEP", "NEJM"])  # fmt: skip
            if rng.random() < 0.5:
                short = "".join(rng.choices("ABCDEFGHIJLMNOPRST", k=rng.randint(3, 6)))
            full = short if rng.random() < 0.3 else full
        elif rng.random() < 0.03:
            short = rng.choice(["ACM ", "IEEE ", "IEEE/ACM "]) + "".join(rng.choices("ABCDEIJKLMNOPST", k=rng.randint(3, 5)))  # fmt: skip
        elif rng.random() < 0.03:
            short = short.lower().capitalize().replace(".", "")
        work.fields["container"], work.fields["short"] = full, short

    def _pages(self, work: CitedWork) -> None:
        rng = self._rng
        first = rng.choice([rng.randint(1, 400), rng.randint(1, 2000), rng.randint(1, 15000)])
        last = first + rng.choice([rng.randint(1, 30), rng.randint(1, 60)])
        roll = rng.random()
        if roll < 0.83:
            work.fields["pages"] = f"{first}-{last}"
        elif roll < 0.90:
            work.fields["pages"] = rng.choice([str(first), str(first), f"{first}-{last}, {last + 5}-{last + 20}", f"{first}-{last} et {last + 5}-{last + 20}"])  # fmt: skip
        elif roll < 0.94:
            work.fields["pages"] = f"e{rng.randint(1000, 99999)}"
        elif roll < 0.96:
            work.fields["pages"] = f"{rng.randint(100000, 999999)}"
        elif roll < 0.975:
            work.fields["pages"] = f"{rng.randint(1, 99999):06d}"
        elif roll < 0.98:
            work.fields["pages"] = f"{first}{rng.choice('abc')}"
        else:
            letter = rng.choice("ASLRED")
            work.fields["pages"] = f"{letter}{first}-{letter}{last}"

    def _imprint(self, work: CitedWork) -> None:
        rng = self._rng
        publisher = self._of("publishers")
        if rng.random() < 0.15:
            publisher = f"{self._names.one('en').family.split()[-1]} {rng.choice(['Press', 'Verlag', 'Books', 'Publishing', '& Sons', 'Publishers', 'Editore', 'Éditions', 'University Press'])}"
        elif rng.random() < 0.15:
            family = self._names.one(work.language).family
            subject = self._of("subjects").split()[-1]
            letters = "".join(rng.choices("ABCDEGIKLMNPRSTU", k=rng.randint(3, 5)))
            publisher = rng.choice([
                family, f"{family} & {self._names.one('en').family}", letters, f"{letters} Books", f"{letters} Press", f"{family} & Cie", subject, f"{subject} Press",
                f"{self._town()} UP", f"University of {self._town()} Press", f"{self._town()} University Press", f"Presses de l’université de {self._town()}", f"Presses universitaires de {self._town()}",
                f"Edizioni di {family}", f"Editorial {family}", f"{family} Verlag", f"Universitätsverlag {self._town()}", self._organisation(), f"{family}, {self._names.one('en').family} and Co.", family.upper(),
            ])  # fmt: skip
        work.fields["publisher"], work.fields["place"] = publisher, self._place(work.language)

    def _town(self) -> str:
        """A town by its bare name."""
        return self._of("places").split(",")[0].split("/")[0]

    def _place(self, language: str) -> str:
        """Where a publisher is: a town, often with its state or country, now and then two towns."""
        rng = self._rng
        place = self._of("places") if rng.random() < 0.6 else self._names.town(language)
        roll = rng.random()
        if roll < 0.12 and "," not in place:
            place += ", " + rng.choice(["Scotland", "England", "United Kingdom", "Scotland, United Kingdom", "New Jersey", "Ill.", "Calif.", "Colo.", "Canada", "Australia", "IL", "Mass.", "D. C.", "NY", "USA", "Germany", "Pa.", "N.J.", "New Zealand", "California, USA"])  # fmt: skip
        elif roll < 0.17:
            place += rng.choice([" and ", ", ", "; ", "/", " / ", " ; ", " & "]) + self._town()
        return place

    def _organisation(self) -> str:
        """The name of an institution, made of a subject."""
        rng, subject = self._rng, self._of("subjects")
        scope = rng.choice(["National", "International", "American", "European", "Royal", "World", "Federal", "British"])  # fmt: skip
        body = rng.choice(["Institute of", "Council for", "Association of", "Society of", "Agency for", "Commission on", "Bureau of", "Academy of", "Center for", "Institutes of"])  # fmt: skip
        return rng.choice([
            f"{scope} {body} {subject}", f"{scope} {body} {subject}", f"{subject} Administration", f"Department of {subject}", f"Ministry of {subject}",
            f"{scope} {subject} Association", f"U.S. Department of {subject}", f"Committee on {subject}", f"{subject} Working Group", f"{scope} {subject} Society",
        ])  # fmt: skip

    def _plain_name(self) -> str:
        name = self._names.one("en")
        return f"{name.given[0]} {name.family}"

    def _address(self) -> str:
        rng = self._rng
        host = "".join(rng.choices("abcdefghilmnoprstu", k=rng.randint(3, 12)))
        path = "/".join(
            "".join(rng.choices("abcdefghilmnoprstu0123456789-_", k=rng.randint(2, 14)))
            for _ in range(rng.randint(0, 4))
        )
        return f"{rng.choice(['http://www.', 'https://', 'https://www.', 'http://', 'www.'])}{host}.{rng.choice(['org', 'com', 'edu', 'de', 'gov', 'ac.uk', 'fr', 'net'])}/{path}{rng.choice(['', '', '.html', '.pdf', '/'])}"
