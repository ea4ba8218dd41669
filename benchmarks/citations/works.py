"""Made-up works that are cited: articles, books, chapters, papers, theses, reports, preprints, pages."""

from benchmarks.citations.making import CitedWork, Making
from benchmarks.citations.names import Name

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


class Works(Making):
    """Works one after the other, the same ones for the same seed."""

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
        if rng.random() < 0.015:
            f["written"] = str(year - rng.randint(1, 90))  # the year that it first appeared
        f["title"] = self._titles.title(language)
        getattr(self, f"_{kind}")(work)
        if (
            kind in ("article", "chapter", "paper", "book", "preprint")
            and year > 1995
            and rng.random() < 0.4
        ):
            f["doi"] = f"10.{rng.randint(1000, 9999)}/{self._identifier()}"
        if rng.random() < 0.05:
            f["remark"] = rng.choice([
                f"Cited {rng.randint(2, 90)} times", f"PMCID: PMC{rng.randint(100000, 9999999)}", f"PubMed PMID: {rng.randint(1000000, 29999999)}", "(in German)", "[in Chinese]", "Print", f"(See also {self._of('subjects')} Note No. {rng.randint(1, 90)})",
                f"Also in ({self._names.one('en').family} et al., {year + 2})", f"Special Issue on {self._of('subjects')}", f"(with comments by {self._plain_name()} & {self._plain_name()})", f"[See also: Dover edition {year + 30}]", f"Reprinted in {year + 10}", f"IF: {rng.randint(1, 9)}.{rng.randint(100, 999)}",
                f"({self._of('subjects')})", f"{rng.randint(90, 900)} p.", f"Cited on page {rng.randint(1, 90)}",
            ])  # fmt: skip
        return work

    def _article(self, work: CitedWork) -> None:
        rng, f = self._rng, work.fields
        self._periodical(work)
        f["volume"] = str(rng.choice([rng.randint(1, 60), rng.randint(1, 400), rng.randint(1, 30)]))
        year = int(f["year"][:4])
        if rng.random() < 0.65:
            f["issue"] = rng.choice([str(rng.randint(1, 12)), str(rng.randint(1, 12)), str(rng.randint(1, 9000)), f"{rng.randint(1, 6)}-{rng.randint(7, 9)}", f"{year % 60 + 1}-{year % 60 + 2}",
                                     f"Suppl. {rng.randint(1, 4)}", f"{rng.randint(1, 5)}/{rng.randint(6, 8)}", f"{rng.randint(1, 3)} & {rng.randint(4, 5)}"])  # fmt: skip
        self._pages(work)
        if rng.random() < 0.04:
            for name in ("volume", "issue", "pages"):
                f.pop(name, None)
            f["note"] = rng.choice(
                ["in press", "to appear", "forthcoming", "accepted", "submitted"]
            )
        if rng.random() < 0.02:
            f["volume"] = rng.choice(["II", "III", "IV", "VI", "VII", "IX", "XII", "XIV", "XXIII", "XXXV", "LX"])  # fmt: skip
        elif rng.random() < 0.02:
            f["volume"] = rng.choice(["SAC-4", "PAMI-8", "C-30", "SE-12", "IT-13", "COM-28", "AC-19", "SMC-15"])  # fmt: skip
        if rng.random() < 0.06:
            f.pop("volume", None)  # numbered by issue, or by article alone
        if rng.random() < 0.02:
            f["volume"] = rng.choice("ABD") + f.get("volume", "7")
            if rng.random() < 0.5:
                f["volume"] += f"-{rng.randint(1, 999)}"
        if rng.random() < 0.3:
            f["collaboration"] = (
                f"{rng.choice(['ATLAS', 'STAR', 'CMS', 'Belle II', 'ALICE', 'Planck', 'LHCb', 'PHENIX', 'BaBar'])} Collaboration"
            )
        if rng.random() < 0.03:
            work.authors = [
                Name(
                    rng.choice(
                        [
                            *_ORGANISATIONS,
                            self._organisation(),
                            self._organisation(),
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
                    "1st American ed.",
                    "2nd edn",
                    "5.ª ed.",
                    "4th",
                    "Revised and expanded",
                    "Rev. edn",
                ]
            )
        if rng.random() < 0.12:
            f["series"] = (
                f"{rng.choice(['Studies in', 'Lecture Notes in', 'Handbook of', 'Series in', 'Graduate Texts in'])} {self._of('subjects')}"
                if rng.random() < 0.6
                else f"{rng.choice([f['publisher'], self._of('subjects'), self._titles.noun().capitalize()])} {rng.choice(['Series', 'Series in ' + self._of('subjects'), 'Library', 'Monographs'])}"
            )
        if rng.random() < 0.12:
            f["volume"] = str(rng.randint(1, 20))
            if rng.random() < 0.3:
                f["issue"] = str(rng.choice([rng.randint(1, 20), rng.randint(1, 20000)]))
        if rng.random() < 0.12:
            f["isbn"] = (
                f"978-{rng.randint(0, 9)}-{rng.randint(100, 9999)}-{rng.randint(1000, 9999)}-{rng.randint(0, 9)}"
            )
        if rng.random() < 0.08:
            f["total"] = f"{rng.randint(90, 900)} {rng.choice(['p.', 'pp.', 'S.', 'pages'])}"
        if rng.random() < 0.15:
            work.editors, work.authors = work.authors[:3], []
        if rng.random() < 0.06:
            work.authors, work.editors = [Name(self._organisation(), ())], []
            if rng.random() < 0.4:
                f["volume"], f["issue"] = str(rng.randint(1, 40)), str(rng.randint(1, 20000))
        if rng.random() < 0.1:
            f["note"] = (
                rng.choice(["Trans. ", "Translated by ", "trad. ", "Übers. ", "Trad. ", "trans. "])
                + self._plain_name()
            )

    def _chapter(self, work: CitedWork) -> None:
        self._imprint(work)
        work.fields["container"] = self._titles.title(work.language)
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
        acronym = acronym or "SIG"
        short_name = "".join(rng.choices("ABCDEGILMNOPRSTV", k=rng.randint(3, 6)))
        meeting = rng.choice([
            f"{number}{suffix} Int'l. Conf. on {subject} ({short_name}-{rng.choice(['II', 'IV', 'VI', '3'])})", f"{number}{suffix}. {acronym}-{short_name} {subject} Workshop", f"{short_name}-{rng.randint(1, 9)}", f"{short_name} {rng.choice(['II', 'IV', 'VI'])}", f"{short_name} '{year[2:4]}",
            f"IEEE/RSJ {short_name} '{year[2:4]}", f"{short_name}-{year[2:4]} Workshop on {subject}", f"National Conference on {subject}", f"{subject} Society of America, {year} Annual Meeting", f"International {subject} Society Meeting", f"Conf. Rec. of the {number}{suffix} Workshop on {subject}",
            f"SIG{acronym} '{year[2:4]} Conference on {subject} and {self._of('subjects')}", f"{rng.choice(['Ninth', 'Twelfth', 'Nineteenth', 'Eleventh'])} Annual {rng.choice(['ACM', 'IEEE', 'International', 'National'])} Conference on {subject} and {self._of('subjects')}", f"{subject}, {self._titles.noun().capitalize()} and {self._titles.noun().capitalize()}",
            f"{self._town()} Symposium on {subject}", f"{subject} '{year[2:4]}", f"{subject} and {self._of('subjects')}: {number}{suffix} International Conference",
            f"{number}{suffix} International Conference on {subject}", f"International Conference on {subject}", f"{number}{suffix} Annual Meeting of the Association for {subject}",
            f"IEEE International Conference on {subject} ({acronym})", f"ACM SIG{acronym} Conference on {subject}", f"{year} IEEE Symposium on {subject}", f"Workshop on {subject}",
            f"Advances in {subject}", f"{number}{suffix} ACM Symposium on {subject}", f"European Conference on {subject}", f"{rng.choice(['Third', 'Fifth', 'Tenth', 'First', 'Second'])} International Workshop on {subject}",
            f"{acronym}{rng.choice([' ', '’', '-', ''])}{year[2:] if rng.random() < 0.5 else year}", f"Conference on {subject}", f"Tagung {subject}",
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
            f["place"] = self._place("en")
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
        if rng.random() < 0.5:
            work.authors = [
                Name(rng.choice([rng.choice(_ORGANISATIONS), self._organisation()]), ())
            ]
        if rng.random() < 0.15:
            f["volume"], f["issue"] = str(rng.randint(1, 40)), str(rng.randint(1, 20000))
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
