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
        work.fields["container"], work.fields["short"] = full, short

    def _pages(self, work: CitedWork) -> None:
        rng = self._rng
        first = rng.choice([rng.randint(1, 400), rng.randint(1, 2000), rng.randint(1, 15000)])
        last = first + rng.choice([rng.randint(1, 30), rng.randint(1, 60)])
        roll = rng.random()
        if roll < 0.83:
            work.fields["pages"] = f"{first}-{last}"
        elif roll < 0.90:
            work.fields["pages"] = str(first)
        elif roll < 0.94:
            work.fields["pages"] = f"e{rng.randint(1000, 99999)}"
        elif roll < 0.97:
            work.fields["pages"] = f"{rng.randint(100000, 999999)}"
        else:
            letter = rng.choice("ASLRED")
            work.fields["pages"] = f"{letter}{first}-{letter}{last}"

    def _imprint(self, work: CitedWork) -> None:
        rng = self._rng
        publisher = self._of("publishers")
        if rng.random() < 0.15:
            publisher = f"{self._names.one('en').family.split()[-1]} {rng.choice(['Press', 'Verlag', 'Books', 'Publishing', '& Sons', 'Publishers', 'Editore', 'Éditions', 'University Press'])}"
        work.fields["publisher"], work.fields["place"] = publisher, self._of("places")

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
