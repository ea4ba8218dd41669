"""Made-up works that are cited: articles, books, chapters, papers, theses, reports, preprints, pages."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from faker import Faker

_LOCALES = {
    "en": ["en_US", "en_GB", "en_IN", "en_AU"],
    "de": ["de_DE", "de_AT"],
    "fr": ["fr_FR", "fr_CA"],
    "es": ["es_ES", "es_MX"],
    "it": ["it_IT"],
    "pt": ["pt_BR", "pt_PT"],
    "other": [
        "nl_NL",
        "sv_SE",
        "da_DK",
        "no_NO",
        "fi_FI",
        "pl_PL",
        "cs_CZ",
        "hu_HU",
        "ro_RO",
        "tr_TR",
        "hr_HR",
        "vi_VN",
    ],
}
_PINYIN = ["Wang", "Li", "Zhang", "Liu", "Chen", "Yang", "Huang", "Zhao", "Wu", "Zhou", "Xu", "Sun", "Ma", "Zhu", "Hu", "Guo", "He", "Lin", "Gao", "Luo", "Zheng", "Liang", "Xie", "Tang", "Feng", "Kim", "Lee", "Park", "Choi", "Tanaka", "Suzuki", "Sato", "Watanabe", "Ito", "Nakamura", "Kobayashi", "Singh", "Kumar", "Gupta", "Nguyen", "Tran"]  # fmt: skip
_PINYIN_GIVEN = ["Wei", "Jun", "Ming", "Xiaoming", "Yu-Ting", "Hui", "Jing", "Lei", "Yan", "Bo", "Jie", "Hao", "Zhi-Hua", "Xin", "Feng", "Min-Jung", "Sung", "Hiroshi", "Kenji", "Yuki", "Takeshi", "Akira", "Raj", "Anil", "Priya", "Thanh", "Minh"]  # fmt: skip
_PARTICLES = [
    "van",
    "van der",
    "de",
    "von",
    "de la",
    "di",
    "da",
    "dos",
    "du",
    "Le",
    "O'",
    "Mc",
    "Van",
    "De",
    "el",
]
_SUFFIXES = ["Jr.", "Jr", "III", "II"]
_MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
_ORGANISATIONS = ["World Health Organization", "OECD", "UNESCO", "European Commission", "U.S. Department of Education", "National Research Council", "American Psychiatric Association", "World Bank", "IPCC", "Statistisches Bundesamt", "Ministère de la Santé", "Instituto Nacional de Estadística", "Centers for Disease Control and Prevention", "The Economist Intelligence Unit", "International Labour Office", "Pew Research Center", "Royal Society", "UNICEF", "NIST", "W3C", "Food and Agriculture Organization", "Bundesministerium für Bildung und Forschung", "Human Rights Watch", "U.S. Census Bureau"]  # fmt: skip


@cache
def listed(name: str) -> tuple[str, ...]:
    """The lines of a list beside this module, without its comments."""
    text = (
        files("benchmarks.citations").joinpath("lists", f"{name}.txt").read_text(encoding="utf-8")
    )
    return tuple(
        line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")
    )


@cache
def words(language: str) -> tuple[str, ...]:
    """Words of a language that titles are made of."""
    return tuple(" ".join(listed(f"words.{language}")).split())


@dataclass(frozen=True)
class Name:
    """A person; an organisation has no given names."""

    family: str
    given: tuple[str, ...]  # each of the given names
    suffix: str = ""


@dataclass
class CitedWork:
    """What is cited: its fields as they may be printed, so "volume" may be missing and "pages" may be one number."""

    kind: str  # article, book, chapter, paper, thesis, report, preprint, page
    language: str
    authors: list[Name]
    fields: dict[str, str] = field(default_factory=dict)
    editors: list[Name] = field(default_factory=list)


class Names:
    """People of many languages, seeded."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._fakers = {
            locale: Faker(locale) for locales in _LOCALES.values() for locale in locales
        }
        for number, faker in enumerate(self._fakers.values()):
            faker.seed_instance(rng.randrange(2**32) + number)

    def one(self, language: str) -> Name:
        """Somebody, mostly with a name of that language."""
        rng = self._rng
        roll = rng.random()
        if roll < 0.15:
            return Name(rng.choice(_PINYIN), (rng.choice(_PINYIN_GIVEN),))
        pool = _LOCALES[language] if roll < 0.65 else _LOCALES[rng.choice(list(_LOCALES))]
        faker = self._fakers[rng.choice(pool)]
        family, given = faker.last_name(), [faker.first_name().split()[0]]
        if rng.random() < 0.45:
            given.append(
                rng.choice([faker.first_name().split()[0], rng.choice("ABCDEFGHJKLMPRSTW") + "."])
            )
        if rng.random() < 0.06:
            given[0] = f"{given[0]}-{faker.first_name().split()[0]}"
        if rng.random() < 0.07:
            particle = rng.choice(_PARTICLES)
            family = particle + family if particle in ("O'", "Mc") else f"{particle} {family}"
        if rng.random() < 0.05 and " " not in family:
            family = f"{family}-{faker.last_name().split()[-1]}"
        return Name(family, tuple(given), rng.choice(_SUFFIXES) if rng.random() < 0.015 else "")

    def several(self, language: str) -> list[Name]:
        """The authors of a work: one to twelve."""
        count = self._rng.choices([1, 2, 3, 4, 5, 6, 8, 12], [32, 27, 17, 9, 5, 4, 4, 2])[0]
        return [self.one(language) for _ in range(count)]


class Works:
    """Works one after the other, the same ones for the same seed."""

    def __init__(self, seed: int, *, held_out: bool = False) -> None:
        """With `held_out`, works of journals, publishers and places that the others never name."""
        self._rng = random.Random(seed)
        self._names = Names(self._rng)
        self._held_out = held_out

    def _of(self, name: str) -> str:
        """An entry of a list: every fifth is held back for the measurement."""
        entries = listed(name)
        return self._rng.choice(
            [entry for place, entry in enumerate(entries) if (place % 5 == 2) == self._held_out]
        )

    def next(self) -> CitedWork:
        """The next work."""
        rng = self._rng
        kind = rng.choices(
            ["article", "book", "chapter", "paper", "thesis", "report", "preprint", "page", "news"],
            [42, 15, 10, 13, 4, 4, 5, 5, 2],
        )[0]
        language = rng.choices(["en", "de", "fr", "es", "it", "pt"], [72, 8, 7, 5, 3, 5])[0]
        work = CitedWork(kind, language, self._names.several(language))
        year = (
            int(rng.triangular(1900, 2025, 2008)) if rng.random() < 0.9 else rng.randint(1780, 1950)
        )
        f = work.fields
        f["year"] = str(year)
        if rng.random() < 0.01:
            f["year"] += f"/{year + 1}"
        elif rng.random() < 0.06:
            f["letter"] = rng.choice("abc")
        f["month"] = rng.choice(_MONTHS)
        if rng.random() < 0.04:
            f["month"] += rng.choice(["-", "/", " - ", " / "]) + rng.choice(_MONTHS)
        f["day"] = str(rng.randint(1, 28))
        f["title"] = self.title(language)
        getattr(self, f"_{kind}")(work)
        if (
            kind in ("article", "chapter", "paper", "book", "preprint")
            and year > 1995
            and rng.random() < 0.4
        ):
            f["doi"] = f"10.{rng.randint(1000, 9999)}/{self._identifier()}"
        return work

    def _identifier(self) -> str:
        rng = self._rng
        return rng.choice([
            f"s{rng.randint(10000, 99999)}-{rng.randint(10, 99):03d}-{rng.randint(1000, 9999)}-{rng.randint(0, 9)}",
            f"j.{''.join(rng.choices('abcdefghijklmnoprstuv', k=5))}.{rng.randint(1995, 2024)}.{rng.randint(1, 12):02d}.{rng.randint(1, 150):03d}",
            f"{rng.randint(1000000, 3999999)}.{rng.randint(1000000, 3999999)}",
            f"PhysRevLett.{rng.randint(50, 130)}.{rng.randint(10000, 99999)}",
            f"S{rng.randint(1000, 9999)}-{rng.randint(1000, 9999)}({rng.randint(0, 99):02d}){rng.randint(10000, 99999)}-{rng.choice('0123456789X')}",
        ])  # fmt: skip

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

    def _article(self, work: CitedWork) -> None:
        rng, f = self._rng, work.fields
        self._periodical(work)
        f["volume"] = str(rng.choice([rng.randint(1, 60), rng.randint(1, 400), rng.randint(1, 30)]))
        if rng.random() < 0.65:
            f["issue"] = rng.choice([str(rng.randint(1, 12)), str(rng.randint(1, 12)), str(rng.randint(1, 9000)), f"{rng.randint(1, 6)}-{rng.randint(7, 9)}",
                                     f"Suppl. {rng.randint(1, 4)}", f"{rng.randint(1, 5)}/{rng.randint(6, 8)}", f"{rng.randint(1, 3)} & {rng.randint(4, 5)}"])  # fmt: skip
        self._pages(work)
        if rng.random() < 0.04:
            for name in ("volume", "issue", "pages"):
                f.pop(name, None)
            f["note"] = rng.choice(
                ["in press", "to appear", "forthcoming", "accepted", "submitted"]
            )
        if rng.random() < 0.06:
            f.pop("volume", None)  # numbered by issue, or by article alone
        if rng.random() < 0.02:
            work.authors = [
                Name(
                    rng.choice(
                        [
                            *_ORGANISATIONS,
                            f"{rng.choice(['ATLAS', 'Planck', 'LIGO Scientific', 'CMS', 'Belle', 'COSMIC'])} Collaboration",
                        ]
                    ),
                    (),
                )
            ]
        if rng.random() < 0.05:
            f["url"] = self._address()
        if rng.random() < 0.03:
            f["number"] = f"PMID: {rng.randint(1000000, 29999999)}"

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

    def _book(self, work: CitedWork) -> None:
        rng, f = self._rng, work.fields
        self._imprint(work)
        if rng.random() < 0.2:
            f["edition"] = rng.choice(
                [
                    "2nd ed.",
                    "3rd ed.",
                    "2nd edition",
                    "Second edition",
                    "rev. ed.",
                    "4th edn",
                    "2. Aufl.",
                    "5th ed",
                    "3. Auflage",
                    "2e éd.",
                    "2ª ed.",
                    "1st ed.",
                ]
            )
        if rng.random() < 0.12:
            f["series"] = (
                f"{rng.choice(['Studies in', 'Lecture Notes in', 'Handbook of', 'Series in', 'Graduate Texts in'])} {self._of('subjects')}"
            )
        if rng.random() < 0.08:
            f["volume"] = str(rng.randint(1, 9))
        if rng.random() < 0.12:
            f["isbn"] = (
                f"978-{rng.randint(0, 9)}-{rng.randint(100, 9999)}-{rng.randint(1000, 9999)}-{rng.randint(0, 9)}"
            )
        if rng.random() < 0.08:
            f["total"] = f"{rng.randint(90, 900)} {rng.choice(['p.', 'pp.', 'S.', 'pages'])}"
        if rng.random() < 0.1:
            work.editors, work.authors = work.authors[:3], []
        if rng.random() < 0.05:
            f["note"] = (
                rng.choice(["Trans. ", "Translated by ", "trad. ", "Übers. "]) + self._plain_name()
            )

    def _plain_name(self) -> str:
        name = self._names.one("en")
        return f"{name.given[0]} {name.family}"

    def _chapter(self, work: CitedWork) -> None:
        self._imprint(work)
        work.fields["container"] = self.title(work.language)
        self._pages(work)
        if self._rng.random() < 0.85:
            work.editors = self._names.several(work.language)[:4]
        if self._rng.random() < 0.12:
            work.fields["volume"] = str(self._rng.randint(1, 20))
        if self._rng.random() < 0.1:
            work.fields["edition"] = self._rng.choice(["2nd ed.", "3rd ed.", "2. Aufl."])

    def _paper(self, work: CitedWork) -> None:
        rng, f = self._rng, work.fields
        subject, year = self._of("subjects"), f["year"]
        number = rng.randint(2, 40)
        suffix = (
            "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
        )
        acronym = "".join(word[0] for word in subject.split() if word[0].isupper())
        meeting = rng.choice([
            f"{number}{suffix} International Conference on {subject}", f"International Conference on {subject}", f"{number}{suffix} Annual Meeting of the Association for {subject}",
            f"IEEE International Conference on {subject} ({acronym})", f"ACM SIG{acronym} Conference on {subject}", f"{year} IEEE Symposium on {subject}", f"Workshop on {subject}",
            f"Advances in {subject}", f"{number}{suffix} ACM Symposium on {subject}", f"European Conference on {subject}", f"{rng.choice(['Third', 'Fifth', 'Tenth', 'First', 'Second'])} International Workshop on {subject}",
            f"{acronym or 'SIG'}{rng.choice([' ', '’', '-', ''])}{year[2:] if rng.random() < 0.5 else year}", f"Conference on {subject}", f"Tagung {subject}",
            rng.choice(["NIPS", "CVPR", "ICML", "SIGMOD", "CHI", "ACL", "VLDB", "SOSP", "OSDI", "Advances in Neural Information Processing Systems", "KDD", "STOC", "FOCS", "EMNLP", "ICLR", "AAAI", "IJCAI", "INFOCOM", "Lecture Notes in Computer Science"]),
        ])  # fmt: skip
        if not meeting.startswith(("Advances", "Lecture")) and rng.random() < 0.6:
            meeting = (
                rng.choice(
                    [
                        "Proceedings of the ",
                        "Proc. of the ",
                        "Proc. ",
                        "Proceedings of ",
                        "Proc. of ",
                    ]
                )
                + meeting
            )
        f["container"] = f["short"] = meeting
        if rng.random() < 0.75:
            self._pages(work)
        if rng.random() < 0.25:
            f["volume"] = str(rng.randint(1, 9999))
        if rng.random() < 0.4:
            self._imprint(work)
            if rng.random() < 0.4:
                del f["place"]
            elif rng.random() < 0.4:
                del f["publisher"]
        elif rng.random() < 0.3:
            f["place"] = self._of("places")
        if rng.random() < 0.12:
            work.editors = self._names.several("en")[:3]

    def _thesis(self, work: CitedWork) -> None:
        rng, f = self._rng, work.fields
        work.authors = work.authors[:1]
        town = self._of("places").split(",")[0]
        f["publisher"] = rng.choice([f"University of {town}", f"{town} University", f"Universität {town}", f"Université de {town}", f"Universidad de {town}", "MIT",
                                     f"Dept. of Computer Science, University of {town}", "Stanford University", f"Technische Universität {town}", f"Universidade de {town}"])  # fmt: skip
        f["type"] = rng.choice(["PhD thesis", "Ph.D. dissertation", "Doctoral dissertation", "Master's thesis", "PhD diss.", "Ph.D. thesis", "Dissertation", "Thèse de doctorat",
                                "Tesis doctoral", "Diplomarbeit", "Unpublished doctoral dissertation", "Tese de doutorado", "MSc thesis"])  # fmt: skip
        if rng.random() < 0.4:
            f["place"] = town

    def _report(self, work: CitedWork) -> None:
        rng, f = self._rng, work.fields
        if rng.random() < 0.4:
            work.authors = [Name(rng.choice(_ORGANISATIONS), ())]
        f["type"] = rng.choice(
            [
                "Technical Report",
                "Tech. Rep.",
                "Working Paper",
                "Research Report",
                "Technical report",
                "Discussion Paper",
                "Policy Brief",
                "White Paper",
                "NBER Working Paper",
            ]
        )
        if rng.random() < 0.8:
            f["number"] = rng.choice([f"No. {rng.randint(1, 9999)}", f"{rng.choice(['TR', 'CS', 'UCB', 'RR', 'AIM'])}-{rng.randint(70, 99)}-{rng.randint(1, 400)}", str(rng.randint(1, 30000)), f"{rng.choice(['CSL', 'MIT-LCS', 'CMU-CS'])}-{rng.randint(1, 99)}"])  # fmt: skip
        f["publisher"] = rng.choice([*_ORGANISATIONS, f"University of {self._of('places').split(',')[0]}", "National Bureau of Economic Research", "Xerox PARC", "Bell Laboratories", "IBM Research", "INRIA", "Stanford University"])  # fmt: skip
        if rng.random() < 0.4:
            f["place"] = self._of("places")
        if rng.random() < 0.3:
            f["url"] = self._address()

    def _preprint(self, work: CitedWork) -> None:
        rng, f = self._rng, work.fields
        if int(f["year"][:4]) < 1992:
            f["year"] = str(rng.randint(1992, 2025))
        f["arxiv"] = (
            f"{int(f['year'][:4]) % 100:02d}{rng.randint(1, 12):02d}.{rng.randint(1, 19999):05d}"
            if int(f["year"][:4]) > 2007
            else rng.choice(["hep-th", "astro-ph", "cond-mat", "quant-ph", "math"])
            + f"/{rng.randint(9201000, 9912999)}"
        )
        f["class"] = rng.choice(
            ["cs.LG", "cs.CL", "cs.CV", "stat.ML", "quant-ph", "hep-th", "math.CO", "astro-ph.GA"]
        )

    def _page(self, work: CitedWork) -> None:
        rng, f = self._rng, work.fields
        if rng.random() < 0.5:
            work.authors = [Name(rng.choice(_ORGANISATIONS), ())] if rng.random() < 0.7 else []
        else:
            work.authors = work.authors[:2]
        f["url"] = self._address()
        if rng.random() < 0.6:
            f["container"] = rng.choice(["Wikipedia", "BBC News", "Medium", "GitHub", "The Conversation", "W3C", "Stack Overflow", "Our World in Data", self._of("subjects") + " Blog", self._of("journals").partition("|")[0].strip()])  # fmt: skip
        f["accessed"] = rng.choice([f"{rng.choice(_MONTHS)} {rng.randint(1, 28)}, {rng.randint(2000, 2025)}", f"{rng.randint(1, 28)} {rng.choice(_MONTHS)} {rng.randint(2000, 2025)}",
                                    f"{rng.randint(2000, 2025)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}", f"{rng.randint(1, 28)}.{rng.randint(1, 12)}.{rng.randint(2000, 2025)}"])  # fmt: skip

    def _news(self, work: CitedWork) -> None:
        rng, f = self._rng, work.fields
        work.authors = work.authors[:2] if rng.random() < 0.7 else []
        f["container"] = rng.choice(
            [
                "The New York Times",
                "The Guardian",
                "Le Monde",
                "Der Spiegel",
                "The Economist",
                "Washington Post",
                "El País",
                "Financial Times",
                "Die Zeit",
                "The Times",
            ]
        )
        f["dated"] = "yes"
        if rng.random() < 0.6:
            f["pages"] = rng.choice(
                [str(rng.randint(1, 60)), f"A{rng.randint(1, 30)}", f"B{rng.randint(1, 9)}"]
            )
        else:
            f["url"] = self._address()

    def _address(self) -> str:
        rng = self._rng
        host = "".join(rng.choices("abcdefghilmnoprstu", k=rng.randint(3, 12)))
        path = "/".join(
            "".join(rng.choices("abcdefghilmnoprstu0123456789-_", k=rng.randint(2, 14)))
            for _ in range(rng.randint(0, 4))
        )
        return f"{rng.choice(['http://www.', 'https://', 'https://www.', 'http://', 'www.'])}{host}.{rng.choice(['org', 'com', 'edu', 'de', 'gov', 'ac.uk', 'fr', 'net'])}/{path}{rng.choice(['', '', '.html', '.pdf', '/'])}"
