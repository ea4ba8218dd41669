"""Works written out in a style, each character with the label of the field that it belongs to."""

import random
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files

from benchmarks.citations.making import CitedWork
from benchmarks.citations.names import Name

# A piece of text and the field that it is; "o" is what belongs to none.
Piece = tuple[str, str]

_PART = re.compile(r"\{(\w+)\}|<|>|[^{}<>]+")
# The ways of writing one person that a style may be changed to.
_NAMES = ["F, I. I.", "F, I.I.", "F II", "F, II", "F I. I.", "F I.I.", "I. I. F", "I.I. F", "II F", "G F", "F G", "F, G", "F (I.)", "F", "I. F"]  # fmt: skip
_SHORT_MONTHS = {"September": "Sept"}


@dataclass(frozen=True)
class Style:
    """How a journal or a society wants references."""

    title: str
    name: str
    join: str
    last: str
    max: int
    templates: Mapping[str, str]
    first: str = ""
    caps: bool = False


@cache
def styles() -> tuple[tuple[Style, ...], tuple[Style, ...]]:
    """The styles to learn from, and those that are held back to measure with."""
    table = tomllib.loads(
        files("benchmarks.citations").joinpath("styles.toml").read_text(encoding="utf-8")
    )
    held = set(table.pop("held_out")["styles"])
    made = {}
    for title, given in table.items():
        rules = {
            name: given.pop(name)
            for name in ("name", "join", "last", "max", "first", "caps")
            if name in given
        }
        made[title] = Style(title=title, templates=given, **rules)
    return tuple(made[name] for name in made if name not in held), tuple(
        made[name] for name in made if name in held
    )


@dataclass
class Writer:
    """Writes works in a style; with `vary` a style's signs are changed now and then, as no two journals keep to one style alike."""

    rng: random.Random
    vary: bool = False
    _now: dict[str, str] = field(default_factory=dict)

    def write(self, work: CitedWork, style: Style) -> list[Piece]:
        """The reference, piece by piece; the pieces' texts one after the other are what is printed."""
        template = self._template(work, style)
        if self.vary and self.rng.random() < 0.45:
            template = self._varied(template)
        self._now = {"dash": self.rng.choice(["-", "-", "–", "–", "--", "‐", "-", "–", "‑", "—", "- ", " - ", " – ", "– ", " ‑ ", "_"])}  # fmt: skip
        if self.vary:
            style = self._of_another_hand(style)
        pieces: list[Piece] = []
        groups: list[
            tuple[int, bool]
        ] = []  # where an optional group begins, and whether all of its fields are there
        for match in _PART.finditer(template.replace("<{url}>", "⟨{url}⟩")):
            part = match.group()
            if part == "<":
                groups.append((len(pieces), True))
            elif part == ">":
                begin, whole = groups.pop()
                if not whole:
                    del pieces[begin:]
            elif match.group(1):
                written = self._field(match.group(1), work, style)
                if not written and groups:
                    groups[-1] = (groups[-1][0], False)
                pieces += written
            else:
                pieces.append((part.replace("⟨", "<").replace("⟩", ">"), "o"))
        return _tidy(pieces)

    def _of_another_hand(self, style: Style) -> Style:
        """The style with its people written, or joined, in another way now and then."""
        rng = self.rng
        if rng.random() < 0.12:
            style = replace(style, name=rng.choice(_NAMES), first="")
        if rng.random() < 0.12:
            style = replace(style, last=rng.choice([" and ", ", and ", " & ", ", & ", " et ", " und ", " y ", " e ", "; ", ", ", " a ", "; & "]))  # fmt: skip
        if rng.random() < 0.06:
            joins = [",, ", "; ", ", ", " and ", " & ", "/", " – ", ", and "]
            if style.name.endswith("I."):
                joins += [" ", " "]
            style = replace(style, join=rng.choice(joins))
        if rng.random() < 0.03:
            style = replace(style, caps=not style.caps)
        return style

    def _template(self, work: CitedWork, style: Style) -> str:
        kind = "page" if work.kind == "news" and "url" in work.fields else work.kind
        alike = {
            "paper": ["chapter"],
            "report": ["thesis", "book"],
            "thesis": ["report", "book"],
            "preprint": ["article"],
            "page": ["book"],
            "news": ["article"],
            "chapter": ["book"],
        }
        template = next(
            (
                style.templates[name]
                for name in [kind, *alike.get(kind, [])]
                if name in style.templates
            ),
            style.templates["article"],
        )
        if self.vary and work.kind == "book":
            if "series" in work.fields and "{series}" not in template and self.rng.random() < 0.7:
                template = template.replace("{title}.", self.rng.choice(["{title}. {series}.", "{title} ({series}).", "{title}, {series}."]), 1)  # fmt: skip
            if "volume" in work.fields and "{volume}" not in template and self.rng.random() < 0.7:
                template = template.replace("{title}.", "{title}." + self.rng.choice([" Vol. {volume}.< No. {issue}.>", " vol. {volume}<, no. {issue}>.", " Volume {volume}<, No. {issue}>."]), 1)  # fmt: skip
            if "note" in work.fields and "{note}" not in template:
                template = template.replace("{title}.", "{title}. {note}.", 1)
            if work.authors and self.rng.random() < 0.06:
                by = self.rng.choice([". Edited by {names}.", ". Ed. {names}.", ", ed. by {names}.", ". Edited and translated by {names}.", ", ed. {names}."])  # fmt: skip
                template = template.replace("{title}.", "{title}" + by.replace("names", "editor_of"), 1)  # fmt: skip
        if self.vary and "remark" in work.fields:
            template = re.sub(r"[.;]?$", self.rng.choice([". {remark}.", ", {remark}.", " {remark}", ". {remark}"]), template, count=1)  # fmt: skip
        if work.kind == "news" and kind == "news":
            template = template.replace("{year}", "{full_date}", 1)
        if not work.authors and not work.editors:
            template = re.sub(r"^\{authors\}[.,:]? ?", "", template)
            template = re.sub(
                r"^\(?\{year\}(<[^>]*>)?\)?[.,:]? ?(.?\{title\}.?)", r"\2 ({year}). ", template
            )
        if not work.editors and "editors_plain" in template:
            template = re.sub(r"<[^<>]*\{editors_plain\}[^<>]*>", "", template)
            template = re.sub(r"[,;.]? ?[\w ]*\(?\{editors_plain\}(,? \(?\w+\.?\)?)?[):]?[.,;:]?", lambda match: " " + ("In" if "n" in match.group()[:4] else ""), template, count=1)  # fmt: skip
        return template

    def _varied(self, template: str) -> str:
        rng = self.rng
        changes: list[tuple[str, str]] = [
            (r"pp?\. ?\{pages\}", rng.choice(["{pages}", "p. {pages}", "pages {pages}", "pp {pages}", "S. {pages}", "p.{pages}", "p {pages}", "pgs. {pages}", "pp. {pages}"])),
            (r"<\(\{issue\}\)>", rng.choice(["< ({issue})>", "<, no. {issue}>", "<.{issue}>", "<, {issue}>", "<:{issue}>", "<, Nos. {issue}>", "< no. {issue}>", "</{issue}>", "<, Heft {issue}>", "<, iss. {issue}>", "<-{issue}>", "<: {issue}>", "<, n° {issue}>", "<, no {issue}>", "< ({issue}) >"])),
            (r"<, \{volume\}>|< \{volume\}>", rng.choice(["<, v. {volume}>", "<. {volume}>", "< vol. {volume}>", "<. Volume {volume}>", "<. Vol. {volume}>", "<, {volume}>", "< {volume}>", "<, vol. {volume}>", "<, Vol. {volume}>", "< vol {volume}>", "<, Bd. {volume}>", "<, volume {volume}>", "<, t. {volume}>", "<, v. {volume}>", "<; {volume}>"])),
            (r"“\{title\}([.,]?)”", rng.choice(["\"{title}\\1\"", "‘{title}’\\1", "{title}\\1", "“{title}”\\1", "\"{title}\"\\1", "''{title}\\1''", "“{title}\\1”", "``{title}\\1''", "« {title} »\\1", "«{title}»\\1", "'{title}'\\1"])),
            (r"\(\{year\}\)\.", rng.choice(["({year})", "({year}):", "{year}.", "({year}),", "[{year}]", "{year},", "{year}"])),
            (r"<, \{pages\}>|<:\{pages\}>|<, pp\. \{pages\}>", rng.choice(["<: {pages}>", "<, {pages}>", "<:{pages}>", "<, pp. {pages}>", "<, p. {pages}>", "<. {pages}>", "<; {pages}>", "< {pages}>", "<. pp. {pages}>", "< pp. {pages}>"])),
            (r"\{place\}: \{publisher\}", rng.choice(["{publisher}, {place}", "{place}, {publisher}", "{publisher}: {place}", "{publisher}", "{place} : {publisher}", "{place}: {publisher}", "{publisher}. {place}", "{place} - {publisher}", "{place}. {publisher}", "({place}) {publisher}"])),
            (r"\{publisher\}, \{place\}", rng.choice(["{place}: {publisher}", "{publisher}", "{publisher} ({place})", "{publisher}, {place}", "{place}: {publisher}"])),
            (r"\([Ee]ds?\.\),", rng.choice(["(ed.)", "(eds)", "(eds.)", "(Eds.)", "(Ed.),", "(ed.):", "(eds),", ", eds.,", ", editors,"])),
            (r"\. In:? ", rng.choice([". In ", ". In: ", ", in ", ". ", " in ", ". in: ", ". En: ", ". In "])),
            (r"\{title\}\. \{container", rng.choice(["{title}, {container", "{title}. {container", "{title}; {container", "{title} {container", "{title}. In {container", "{title}. {container"])),
            (r"\.$", rng.choice(["", ".", ",", ";", "."])),
            (r"^\{authors\}, ", rng.choice(["{authors}. ", "{authors}: ", "{authors}; ", "{authors} ", "{authors}, "])),
            (r"^\{authors\}\. ", rng.choice(["{authors}, ", "{authors}: ", "{authors} ", "{authors} - ", "{authors}. "])),
            (r"<https://doi\.org/\{doi\}>|< https://doi\.org/\{doi\}\.?>", rng.choice(["< doi:{doi}>", "< DOI: {doi}.>", "< http://dx.doi.org/{doi}>", "< [{doi}]>", "< doi {doi}.>"])),
            (r"\{container\}", rng.choice(["{container_short}", "{container_bare}", "{container}", "{container}"])),
            (r"\{container_short\}", rng.choice(["{container}", "{container_bare}", "{container_short}", "{container}"])),
        ]  # fmt: skip
        for pattern, by in changes:
            if rng.random() < 0.3:
                template = re.sub(pattern, by, template, count=1)
        if rng.random() < 0.04 and "{year}" in template:  # the year at the end
            template = re.sub(r",? ?\(?\{year\}\)?[.,:]?", ". ", template, count=1).rstrip(
                ". "
            ) + rng.choice([", {year}.", " ({year}).", ". {year}."])
        return template

    def _field(self, name: str, work: CitedWork, style: Style) -> list[Piece]:
        f, rng = work.fields, self.rng
        plain: dict[str, Callable[[], list[Piece]]] = {
            "authors": lambda: self._people(work.authors, style, editors=work.editors),
            "editors_plain": lambda: self._editors(work.editors, style),
            "year": lambda: self._year(f),
            "full_date": lambda: rng.choice([
                [(f"{f['month']} {f['day']}", "date"), (", ", "o"), (f["year"], "year")], [(f"{f['day']} {f['month']}", "date"), (" ", "o"), (f["year"], "year")],
            ]),
            "month_short": lambda: [(_SHORT_MONTHS.get(f["month"], f["month"][:3] if f["month"].isalpha() else f["month"]), "date")],
            "month": lambda: [(f["month"], "date")],
            "day": lambda: [(f["day"], "date")],
            "container_short": lambda: _given(f.get("short") or f.get("container"), "container"),
            "container_bare": lambda: _given((f.get("short") or f.get("container") or "").replace(".", "") if rng.random() < 0.8 else f.get("container"), "container"),
            "pages_short": lambda: _given(_shortened(f.get("pages", "")), "pages", self._now),
            "pages": lambda: _given(f.get("pages"), "pages", self._now),
            "first_page": lambda: _given(f.get("pages", "").split("-")[0], "pages"),
            "accessed": lambda: _given(f.get("accessed"), "note"),
            "title": lambda: [(self._cased(f["title"]), "title")],
            "arxiv": lambda: _given(f.get("arxiv"), "id"),
            "class": lambda: _given(f.get("class"), "note"),
            "type": lambda: _given(f.get("type"), "type"),
            "number": lambda: _given(f.get("number"), "note"),
            "remark": lambda: _given(f.get("remark"), "note"),
            "editor_of": lambda: self._editors(work.authors[:2], style),
            "collaboration": lambda: _given(f.get("collaboration"), "note"),
            "total": lambda: _given(f.get("total"), "note"),
            "note": lambda: _given(f.get("note"), "note"),
            "doi": lambda: _given(f.get("doi"), "id"),
            "isbn": lambda: _given(f.get("isbn"), "id"),
            "url": lambda: _given(f.get("url"), "id"),
        }  # fmt: skip
        return plain[name]() if name in plain else _given(f.get(name), name)

    def _year(self, fields: Mapping[str, str]) -> list[Piece]:
        """The year; now and then with the year that the work first appeared, or a season."""
        year: list[Piece] = [(fields["year"] + fields.get("letter", ""), "year")]
        if "written" in fields:
            year.append((f" [{fields['written']}]", "o"))
        elif self.vary and self.rng.random() < 0.02:
            season = self.rng.choice(["Spring", "Summer", "Fall", "Autumn", "Winter"])
            year.insert(0, (season + " ", "date"))
        return year

    def _cased(self, title: str) -> str:
        """Titles as words, as a sentence, now and then in capitals."""
        roll = self._now.setdefault(
            "case", self.rng.choices(["sentence", "title", "every", "all"], [58, 36, 4, 2])[0]
        )
        if roll == "every":
            return re.sub(r"(?<![\w’'])([a-zà-ÿ])", lambda match: match.group(1).upper(), title)
        if roll == "title":
            return re.sub(
                r"(?<![\w’'])([a-zà-ÿ])(\w{3,})",
                lambda match: match.group(1).upper() + match.group(2),
                title,
            )
        return title.upper() if roll == "all" else title

    def _people(
        self, people: Sequence[Name], style: Style, *, editors: Sequence[Name]
    ) -> list[Piece]:
        if not people and editors:
            mark = self.rng.choice(
                [
                    " (Eds.)",
                    ", eds.",
                    " (ed.)",
                    " (Hrsg.)",
                    ", editors",
                    ", ed.",
                    " (éds.)",
                    " (Eds)",
                ]
            )
            return [
                *[(text, "editor") for text, _ in self._people(editors, style, editors=())],
                (mark, "o"),
            ]
        if not people:
            return []
        shown, more = list(people), False
        if len(people) > style.max or (len(people) > 2 and self.rng.random() < 0.04):
            shown, more = shown[: max(1, min(style.max, self.rng.choice([1, 3, style.max])))], True
        pieces: list[Piece] = []
        for place, person in enumerate(shown):
            if place:
                last = place == len(shown) - 1 and not more
                joint = style.last if last else style.join
                if (
                    last
                    and len(shown) == 2
                    and joint.startswith(", ")
                    and joint != ", "
                    and style.title not in ("apa", "apa7", "ecology")
                ):
                    joint = joint[1:]
                pieces.append((joint, "asep"))
            form = style.first if style.first and not place else style.name
            pieces += self._person(person, form, caps=style.caps)
        if more:
            pieces += [
                (self.rng.choice([", ", " ", ", "]), "asep"),
                (self.rng.choice(["et al.", "et al.", "et al", "and others", "u. a."]), "etal"),
            ]
        return pieces

    def _editors(self, people: Sequence[Name], style: Style) -> list[Piece]:
        """Editors in a chapter's reference: in many styles the given name comes first there."""
        form = self.rng.choice([style.name, style.name, "I. F", "G F", "I. I. F"])
        pieces: list[Piece] = []
        for place, person in enumerate(people):
            if place:
                pieces.append((style.last if place == len(people) - 1 else style.join, "editor"))
            pieces += [(text, "editor") for text, _ in self._person(person, form, caps=False)]
        return pieces

    def _person(self, person: Name, form: str, *, caps: bool) -> list[Piece]:
        if not person.given:
            return [(person.family, "org")]
        family: list[Piece] = [(person.family.upper() if caps else person.family, "family")]
        first = [given[0] for given in person.given]
        if "-" in person.given[0]:
            first[0] = f"{person.given[0][0]}.-{person.given[0].split('-')[1][0]}"
        given = {
            "G": " ".join(person.given),
            "I. I.": ". ".join(first) + ".",
            "I.I.": ".".join(first) + ".",
            "I I": " ".join(first).replace(".", ""),
            "II": "".join(first).replace(".", ""),
            "I.": first[0] + ".",
        }
        style = next(
            (name for name in ("I. I.", "I.I.", "I I", "II", "I.", "G") if name in form), ""
        )
        if not style:
            return family
        names: list[Piece] = [(given[style], "given")]
        if form.startswith(("G", "I")):
            apart: list[Piece] = [] if form.endswith(".F") else [(" ", "asep")]
            pieces = [*names, *apart, *family]
        elif "(" in form:
            pieces = [*family, (" (", "asep"), *names, (")", "asep")]
        else:
            pieces = [*family, (", " if ", " in form else " ", "asep"), *names]
        if person.suffix:
            pieces.append(
                (", " + person.suffix if form.startswith("F") else " " + person.suffix, "asep")
            )
        return pieces


def _given(text: str | None, label: str, now: Mapping[str, str] | None = None) -> list[Piece]:
    if not text:
        return []
    return [(text.replace("-", now["dash"]) if now else text, label)]


def _shortened(pages: str) -> str:
    """123–125 as 123–5."""
    first, _, last = pages.partition("-")
    if not (first.isdigit() and last.isdigit() and len(first) == len(last)):
        return pages
    same = next((place for place in range(len(first)) if first[place] != last[place]), 0)
    return f"{first}-{last[same:]}"


def _tidy(pieces: list[Piece]) -> list[Piece]:
    """Without the double signs that a field brings along which ends in one."""
    tidy: list[Piece] = []
    for text, label in pieces:
        if not text:
            continue
        if (
            tidy
            and label == "o"
            and text[0] in ".,"
            and tidy[-1][0]
            and tidy[-1][0][-1] in ".?!"
            and not (text[0] == "," and tidy[-1][0][-1] == ".")
        ):
            text = text[1:]
        if tidy and text.startswith(" ") and tidy[-1][0].endswith(" "):
            text = text[1:]
        if text and label == "o" and tidy and tidy[-1][1] == "o":
            tidy[-1] = (_without_gaps(tidy[-1][0] + text), "o")
        elif text:
            tidy.append((text, label))
    return [piece for piece in tidy if piece[0]]


def _without_gaps(signs: str) -> str:
    """Signs between two fields, without those that stood around one that is missing."""
    return re.sub(r"[,:;]\s*(?=[,.;:])|\.\s+(?=[,;:.])|\([\s,:]*\)", "", signs)
