"""The features of each token that the CRF sees: its shape, its kind of word, its neighbours, its
clause."""

import tomllib
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files

from switchyard.services.pipeline.citations.tokens import Token

# By opening mark, the marks that may close the quotation; straight marks do both.
_QUOTES = {"“": "”", "„": "“”", "«": "»", "‘": "’", "``": "''", '"': '"', "'": "'"}


@cache
def _kinds_of_words() -> dict[str, tuple[str, ...]]:
    table = tomllib.loads(
        files("switchyard.services.pipeline.citations")
        .joinpath("keywords.toml")
        .read_text(encoding="utf-8")
    )
    kinds: dict[str, list[str]] = {}
    for kind, words in table.items():
        for word in words.split():
            kinds.setdefault(word, []).append(kind)
    return {word: tuple(dict.fromkeys(word_kinds)) for word, word_kinds in kinds.items()}


class _Word:
    """The features of a token that do not depend on its place."""

    __slots__ = (
        "after",
        "after_next",
        "before",
        "before_last",
        "here",
        "is_capital",
        "is_word",
        "kinds",
        "text",
    )

    def __init__(self, text: str, kind: str) -> None:
        self.text = text
        lower = text.lower()
        self.kinds = _kinds_of_words().get(lower, ()) if kind in ("word", "sign") else ()
        self.is_word = kind == "word"
        self.is_capital = self.is_word and text[0].isupper()
        shape = _shape(text, kind)
        own_features = [shape, *(f"k:{word_kind}" for word_kind in self.kinds)]
        self.here = [*own_features]
        cased = lower.capitalize() if self.is_capital else lower  # "In" is not "in"
        if self.kinds:
            self.here += [f"w:{lower}", f"W:{cased}"] if self.is_capital else [f"w:{lower}"]
        elif self.is_word:
            self.here.append(f"e:{lower[-3:]}" if len(text) > 4 else f"l:{len(text)}")
            if len(text) > 2 and not any(
                letter in "aeiouyáéíóúäöüàèìòùâêîôûãõåøæœ" for letter in lower
            ):
                self.here.append("vowelless")
        self.before = [f"-1{name}" for name in own_features]
        self.after = [f"+1{name}" for name in own_features]
        self.before_last = [f"-2{name}" for name in own_features]
        self.after_next = [f"+2{name}" for name in own_features]
        if self.kinds and len(self.kinds) < 3:
            self.before.append(f"-1w:{cased}")
            self.after.append(f"+1w:{cased}")


# Names and words recur in a paper's references; the cache is bounded.
_word = lru_cache(maxsize=20_000)(_Word)


def _shape(text: str, kind: str) -> str:
    if kind == "number":
        if len(text) == 4 and 1500 <= int(text) <= 2099:
            return "year"
        return f"d{min(len(text), 6)}" + ("0" if text[0] == "0" else "")
    if kind == "sign":
        return f"p:{text}"
    if kind != "word":
        return f"id:{kind}"
    if text.isupper():
        return f"X{min(len(text), 5)}"
    if text[0].isupper():
        return "Xx" if text[1:].islower() else "XxX"
    return "x" if text.islower() else "xX"


def features_of(tokens: Sequence[Token]) -> list[list[str]]:
    """Return the names of each token's features. Linear in the number of tokens."""
    words = [_word(token.text, token.kind) for token in tokens]
    quotations = _quotations(tokens)
    stretch_ends = _ends(words, tokens, quotations)
    sentences = _clauses(words, "S:", [end == "sentence" for end in stretch_ends])
    phrases = _clauses(words, "P:", [bool(end) for end in stretch_ends])
    flags = _reference_flags(words, tokens, has_quotation=bool(quotations))
    quotation_starts, quotation_ends = (
        {first for first, _ in quotations},
        {last for _, last in quotations},
    )
    years_left = sum(word.here[0] == "year" for word in words)
    numbers_left = sum(token.kind == "number" for token in tokens)
    last_index = len(words) - 1
    has_seen_year = has_seen_number = is_quoted = has_closed_quotation = False
    depth = 0
    rows: list[list[str]] = []
    for index, word in enumerate(words):
        is_quoted = is_quoted or index in quotation_starts
        sentence, phrase = sentences[index], phrases[index]
        place_flags = f"{int(has_seen_year)}{int(has_closed_quotation)}{int(is_quoted)}"
        features = [
            *word.here,
            *(words[index - 1].before if index else ["first"]),
            *(words[index - 2].before_last if index > 1 else ()),
            *(words[index + 1].after if index < last_index else ["last"]),
            *(words[index + 2].after_next if index + 1 < last_index else ()),
            *sentence.names,
            *phrase.names,
            f"at:{min(sentence.number, 5)}|{place_flags}",
            f"all:{flags}|{min(sentence.number, 3)}{int(has_seen_year)}",
            f"ph:{min(phrase.number, 8)}",
            f"left:{min(len(words) - index, 40) // 5}",
            f"pos:{min(index, 40) // 4}",
        ]
        if index and tokens[index - 1].end == tokens[index].start:
            features.append("glued")
        if is_quoted:
            features.append("quoted")
        if depth:
            features.append("bracketed")
        if tokens[index].kind == "number":
            numbers_left -= 1
            features.append(f"numbers:{min(numbers_left, 4)}")
            if word.here[0] == "year":
                years_left -= 1
                features.append(f"years:{int(has_seen_year)}{min(years_left, 2)}")
        if has_seen_number:
            features.append(f"number|{min(sentence.number, 5)}")
        rows.append(features)
        if index in quotation_ends:
            is_quoted, has_closed_quotation = False, True
        if word.text in "([":
            depth += 1
        elif word.text in ")]" and depth:
            depth -= 1
        if word.here[0] == "year":
            has_seen_year = True
        elif word.here[0].startswith("d") and index > 3:
            has_seen_number = True
    return rows


def _quotations(tokens: Sequence[Token]) -> list[tuple[int, int]]:
    """Return the first and last token of each quotation that stands by itself, such as a title in
    quotes.

    Words quoted inside a title or another quotation are left out, as is a mark without its partner.
    """
    open_marks: list[int] = []
    expected_closers: Counter[str] = Counter()  # marks that would close one of the opened
    pairs: list[tuple[int, int]] = []
    for index, token in enumerate(tokens):
        text = token.text
        is_straight = text in "\"'"
        if expected_closers[text] and not (is_straight and _opens(tokens, index)):
            while open_marks:
                first = open_marks.pop()
                closers = _QUOTES[tokens[first].text]
                expected_closers.subtract(_closing_marks(closers))
                if text in _closing_marks(closers):
                    pairs.append((first, index))
                    break
        elif text in _QUOTES and (not is_straight or _opens(tokens, index)):
            open_marks.append(index)
            expected_closers.update(_closing_marks(_QUOTES[text]))
    standalone: list[tuple[int, int]] = []
    for first, last in sorted(pairs):
        if (not standalone or first > standalone[-1][1]) and _stands_alone(tokens, first, last):
            standalone.append((first, last))
    return standalone


def _closing_marks(marks: str) -> tuple[str, ...]:
    return (marks,) if marks == "''" else tuple(marks)


def _stands_alone(tokens: Sequence[Token], first: int, last: int) -> bool:
    """Return whether a quotation has a sign, a number or nothing before it, or ends with a sign."""
    if not first or tokens[first - 1].kind != "word" or last + 1 == len(tokens):
        return True
    return tokens[last - 1].text in ",.;:?!" or tokens[last + 1].text in ",.;:?!"


def _opens(tokens: Sequence[Token], index: int) -> bool:
    """Return whether a mark follows a blank, and is followed directly by a token."""
    is_joined_before = index > 0 and tokens[index - 1].end == tokens[index].start
    is_joined_after = index + 1 < len(tokens) and tokens[index + 1].start == tokens[index].end
    return is_joined_after and not is_joined_before


def _reference_flags(
    words: Sequence[_Word], tokens: Sequence[Token], *, has_quotation: bool
) -> str:
    """Return five flags, as 0 and 1: whether the reference has a quotation, numbers as of a volume,
    a publisher, editors, and "In"."""
    has_volume = has_publisher = has_editor = is_part = False
    for index, word in enumerate(words):
        has_publisher = has_publisher or "publisher" in word.kinds
        has_editor = has_editor or "editor" in word.kinds
        if word.text in ("In", "in") and index and tokens[index - 1].kind == "sign":
            is_part = True
        if index > 1 and words[index - 2].here[0].startswith("d") and word.here[0].startswith("d"):
            has_volume = has_volume or words[index - 1].text in "(:,"
        elif index and "volume" in words[index - 1].kinds and word.here[0].startswith("d"):
            has_volume = has_volume or len(words[index - 1].text) > 1
    return "".join(
        str(int(flag)) for flag in (has_quotation, has_volume, has_publisher, has_editor, is_part)
    )


class _Clause:
    """A stretch between two full stops (or commas), with features of the whole stretch."""

    __slots__ = ("names", "number")

    def __init__(self, number: int, prefix: str, words: Sequence[_Word]) -> None:
        """`prefix` begins the names of the clause's features: `S:` for sentences, `P:` for
        phrases."""
        self.number = number
        kinds = {word_kind for word in words for word_kind in word.kinds}
        letters = [word for word in words if word.is_word]
        capitalized = sum(word.is_capital for word in letters if "function" not in word.kinds)
        content_words = sum("function" not in word.kinds for word in letters)
        capitalized_share = (
            "none"
            if not content_words
            else "all"
            if capitalized == content_words
            else "one"
            if capitalized <= 1
            else "most"
            if 2 * capitalized > content_words
            else "few"
        )
        size = len(letters)
        length = str(size) if size < 4 else "4-6" if size < 7 else "7-12" if size < 13 else "long"
        has_digits = any(word.here[0].startswith("d") for word in words)
        initials = sum(word.here[0] == "X1" for word in words)
        self.names = [f"{prefix}{length}{capitalized_share}", f"{prefix}i{min(initials, 3)}"]
        if has_digits:
            self.names.append(f"{prefix}digits")
        if any(word.here[0] == "year" for word in words):
            self.names.append(f"{prefix}year")
        self.names += [f"{prefix}{kind}" for kind in kinds if kind in _CLAUSE_KINDS]
        if letters and "in" in letters[0].kinds:
            self.names.append(
                f"{prefix}{letters[0].text.capitalize() if letters[0].is_capital else 'in'}"
            )

    def add_neighbours(
        self, prefix: str, before: Sequence[_Word], after: Sequence[_Word], clauses_left: int
    ) -> None:
        """Add features of the end of the clause before, of the beginning of the clause after, and
        of the number of clauses that follow."""
        next_start = next(
            (word.here[0] for word in after if word.is_word or word.here[0][0] != "p"), ""
        )
        self.names += [
            f"{prefix}<{before[-1].text if before else ''}",
            f"{prefix}>{next_start}",
            f"{prefix}-{min(clauses_left, 4)}",
        ]


_CLAUSE_KINDS = frozenset({
    "abbreviated", "edition", "editor", "function", "meeting", "month", "pages", "periodical",
    "place", "publisher", "report", "school", "series", "volume", "web",
})  # fmt: skip


def _clauses(words: Sequence[_Word], prefix: str, ends: Sequence[bool]) -> list[_Clause]:
    """Return the clause of each token; a number before the reference belongs to the first
    clause."""
    spans: list[tuple[int, int]] = []
    begin = 0
    for index, end in enumerate(ends):
        if end or index + 1 == len(ends):
            spans.append((begin, index + 1))
            begin = index + 1
    clause_words = [words[slice(*span)] for span in spans]
    has_label = bool(clause_words) and not any(word.is_word for word in clause_words[0])
    clauses = [
        _Clause(max(number - has_label, 0), prefix, stretch)
        for number, stretch in enumerate(clause_words)
    ]
    first_names = [clause.names[0] for clause in clauses]
    for number, clause in enumerate(clauses):
        before = clause_words[number - 1] if number else ()
        after = clause_words[number + 1] if number + 1 < len(clauses) else ()
        clause.add_neighbours(prefix, before, after, len(clauses) - number - 1)
        if after:
            clause.names.append("n" + first_names[number + 1])
        if before:
            clause.names.append("b" + first_names[number - 1])
    return [clause for clause, span in zip(clauses, spans, strict=True) for _ in range(*span)]


def _ends(
    words: Sequence[_Word], tokens: Sequence[Token], quotations: Sequence[tuple[int, int]]
) -> list[str]:
    """Return for each token what ends with it: "sentence", "phrase" or "". A quotation is one
    sentence."""
    ends = [
        "sentence"
        if _ends_sentence(words, tokens, index)
        else "phrase"
        if token.text in ",;:()"
        else ""
        for index, token in enumerate(tokens)
    ]
    for first, last in quotations:
        for index in range(first, last):
            if ends[index]:
                ends[index] = "phrase"
        ends[last] = "sentence"
    return ends


def _ends_sentence(words: Sequence[_Word], tokens: Sequence[Token], index: int) -> bool:
    """Return whether a token is a full stop after a word, and not after an initial or inside an
    abbreviation or a number."""
    text = tokens[index].text
    if text not in ".?!" or not index:
        return False
    previous_word = words[index - 1]
    next_token = tokens[index + 1] if index + 1 < len(tokens) else None
    if next_token:
        if next_token.text in ",;:":
            return False
        if next_token.start == tokens[index].end and next_token.text not in '"”’)]':
            return False
        if (
            text == "."
            and next_token.kind == "word"
            and next_token.text.islower()
            and not words[index + 1].kinds
        ):
            return False  # "Int. conf.": an abbreviation
    if text != "." or not previous_word.is_word:
        return True
    if (
        len(previous_word.text) == 2 and previous_word.text.isupper()
    ):  # "Smith AB. Title", not "Smith, A.B."
        return index > 1 and words[index - 2].is_word and len(words[index - 2].text) > 2
    if (
        previous_word.kinds
        and _NUMBERED.intersection(previous_word.kinds)
        and len(previous_word.text) < 4
    ):
        return False  # "no. 4", "p. 12"
    return len(previous_word.text) > 2 or previous_word.text.islower()


# Kinds of words that a number follows.
_NUMBERED = frozenset({"volume", "issue", "pages"})
