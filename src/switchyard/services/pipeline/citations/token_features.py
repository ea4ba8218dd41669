"""The features of each token that the CRF sees: its shape, its categories, its neighbours, its
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
def _categories_of_words() -> dict[str, tuple[str, ...]]:
    """Return the categories in keywords.toml, such as publisher or month, by word."""
    table = tomllib.loads(
        files("switchyard.services.pipeline.citations")
        .joinpath("keywords.toml")
        .read_text(encoding="utf-8")
    )
    categories: dict[str, list[str]] = {}
    for category, words in table.items():
        for word in words.split():
            categories.setdefault(word, []).append(category)
    return {
        word: tuple(dict.fromkeys(word_categories)) for word, word_categories in categories.items()
    }


class _TokenFeatures:
    """What a token gives, wherever it stands, to its own features and to those of the two tokens on
    each side."""

    __slots__ = (
        "as_current",
        "as_next",
        "as_previous",
        "as_second_next",
        "as_second_previous",
        "categories",
        "is_capital",
        "is_word",
        "shape",
        "text",
    )

    def __init__(self, text: str, token_kind: str) -> None:
        self.text = text
        lower = text.lower()
        has_categories = token_kind in ("word", "sign")
        self.categories = _categories_of_words().get(lower, ()) if has_categories else ()
        self.is_word = token_kind == "word"
        self.is_capital = self.is_word and text[0].isupper()
        self.shape = _shape(text, token_kind)
        shared_features = [self.shape, *(f"k:{category}" for category in self.categories)]
        self.as_current = [*shared_features]
        cased = lower.capitalize() if self.is_capital else lower  # "In" is not "in"
        if self.categories:
            self.as_current += [f"w:{lower}", f"W:{cased}"] if self.is_capital else [f"w:{lower}"]
        elif self.is_word:
            self.as_current.append(f"e:{lower[-3:]}" if len(text) > 4 else f"l:{len(text)}")
            if len(text) > 2 and not any(
                letter in "aeiouyáéíóúäöüàèìòùâêîôûãõåøæœ" for letter in lower
            ):
                self.as_current.append("vowelless")
        self.as_previous = [f"-1{name}" for name in shared_features]
        self.as_next = [f"+1{name}" for name in shared_features]
        self.as_second_previous = [f"-2{name}" for name in shared_features]
        self.as_second_next = [f"+2{name}" for name in shared_features]
        if self.categories and len(self.categories) < 3:
            self.as_previous.append(f"-1w:{cased}")
            self.as_next.append(f"+1w:{cased}")


# Names and words recur in a paper's references; the cache is bounded.
_cached_features = lru_cache(maxsize=20_000)(_TokenFeatures)


def _shape(text: str, token_kind: str) -> str:
    if token_kind == "number":
        if len(text) == 4 and 1500 <= int(text) <= 2099:
            return "year"
        return f"d{min(len(text), 6)}" + ("0" if text[0] == "0" else "")
    if token_kind == "sign":
        return f"p:{text}"
    if token_kind != "word":
        return f"id:{token_kind}"
    if text.isupper():
        return f"X{min(len(text), 5)}"
    if text[0].isupper():
        return "Xx" if text[1:].islower() else "XxX"
    return "x" if text.islower() else "xX"


def features_of(tokens: Sequence[Token]) -> list[list[str]]:
    """Return the names of each token's features. Linear in the number of tokens."""
    token_features = [_cached_features(token.text, token.kind) for token in tokens]
    quotations = _quotations(tokens)
    stretch_ends = _ends(token_features, tokens, quotations)
    sentences = _clauses(token_features, "S:", [end == "sentence" for end in stretch_ends])
    phrases = _clauses(token_features, "P:", [bool(end) for end in stretch_ends])
    flags = _reference_flags(token_features, tokens, has_quotation=bool(quotations))
    quotation_starts, quotation_ends = (
        {first for first, _ in quotations},
        {last for _, last in quotations},
    )
    years_left = sum(each.shape == "year" for each in token_features)
    numbers_left = sum(token.kind == "number" for token in tokens)
    last_index = len(token_features) - 1
    has_seen_year = has_seen_number = is_quoted = has_closed_quotation = False
    depth = 0
    rows: list[list[str]] = []
    for index, current in enumerate(token_features):
        is_quoted = is_quoted or index in quotation_starts
        sentence, phrase = sentences[index], phrases[index]
        place_flags = f"{int(has_seen_year)}{int(has_closed_quotation)}{int(is_quoted)}"
        row = [
            *current.as_current,
            *(token_features[index - 1].as_previous if index else ["first"]),
            *(token_features[index - 2].as_second_previous if index > 1 else ()),
            *(token_features[index + 1].as_next if index < last_index else ["last"]),
            *(token_features[index + 2].as_second_next if index + 1 < last_index else ()),
            *sentence.feature_names,
            *phrase.feature_names,
            f"at:{min(sentence.number, 5)}|{place_flags}",
            f"all:{flags}|{min(sentence.number, 3)}{int(has_seen_year)}",
            f"ph:{min(phrase.number, 8)}",
            f"left:{min(len(token_features) - index, 40) // 5}",
            f"pos:{min(index, 40) // 4}",
        ]
        if index and tokens[index - 1].end == tokens[index].start:
            row.append("glued")
        if is_quoted:
            row.append("quoted")
        if depth:
            row.append("bracketed")
        if tokens[index].kind == "number":
            numbers_left -= 1
            row.append(f"numbers:{min(numbers_left, 4)}")
            if current.shape == "year":
                years_left -= 1
                row.append(f"years:{int(has_seen_year)}{min(years_left, 2)}")
        if has_seen_number:
            row.append(f"number|{min(sentence.number, 5)}")
        rows.append(row)
        if index in quotation_ends:
            is_quoted, has_closed_quotation = False, True
        if current.text in "([":
            depth += 1
        elif current.text in ")]" and depth:
            depth -= 1
        if current.shape == "year":
            has_seen_year = True
        elif current.shape.startswith("d") and index > 3:
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
    """Return whether a quotation has a sign, a number or nothing before it, has a sign or nothing
    after it, or ends with a sign."""
    if not first or tokens[first - 1].kind != "word" or last + 1 == len(tokens):
        return True
    return tokens[last - 1].text in ",.;:?!" or tokens[last + 1].text in ",.;:?!"


def _opens(tokens: Sequence[Token], index: int) -> bool:
    """Return whether a mark follows a blank, and is followed directly by a token."""
    is_joined_before = index > 0 and tokens[index - 1].end == tokens[index].start
    is_joined_after = index + 1 < len(tokens) and tokens[index + 1].start == tokens[index].end
    return is_joined_after and not is_joined_before


def _reference_flags(
    token_features: Sequence[_TokenFeatures], tokens: Sequence[Token], *, has_quotation: bool
) -> str:
    """Return five flags, as 0 and 1: whether the reference has a quotation, numbers that look like
    volume and issue, a publisher, editors, and "In"."""
    has_volume = has_publisher = has_editor = is_part = False
    for index, current in enumerate(token_features):
        has_publisher = has_publisher or "publisher" in current.categories
        has_editor = has_editor or "editor" in current.categories
        if current.text in ("In", "in") and index and tokens[index - 1].kind == "sign":
            is_part = True
        if (
            index > 1
            and token_features[index - 2].shape.startswith("d")
            and current.shape.startswith("d")
        ):
            has_volume = has_volume or token_features[index - 1].text in "(:,"
        elif (
            index
            and "volume" in token_features[index - 1].categories
            and current.shape.startswith("d")
        ):
            has_volume = has_volume or len(token_features[index - 1].text) > 1
    return "".join(
        str(int(flag)) for flag in (has_quotation, has_volume, has_publisher, has_editor, is_part)
    )


class _Clause:
    """A stretch between two full stops (or commas), with features of the whole stretch."""

    __slots__ = ("feature_names", "number")

    def __init__(self, number: int, prefix: str, token_features: Sequence[_TokenFeatures]) -> None:
        """`prefix` begins the names of the clause's features: `S:` for sentences, `P:` for
        phrases."""
        self.number = number
        categories = {category for each in token_features for category in each.categories}
        words = [each for each in token_features if each.is_word]
        content_words = [each for each in words if "function" not in each.categories]
        capitalized = sum(each.is_capital for each in content_words)
        capitalized_share = (
            "none"
            if not content_words
            else "all"
            if capitalized == len(content_words)
            else "one"
            if capitalized <= 1
            else "most"
            if 2 * capitalized > len(content_words)
            else "few"
        )
        size = len(words)
        length = str(size) if size < 4 else "4-6" if size < 7 else "7-12" if size < 13 else "long"
        has_digits = any(each.shape.startswith("d") for each in token_features)
        initials = sum(each.shape == "X1" for each in token_features)
        self.feature_names = [
            f"{prefix}{length}{capitalized_share}",
            f"{prefix}i{min(initials, 3)}",
        ]
        if has_digits:
            self.feature_names.append(f"{prefix}digits")
        if any(each.shape == "year" for each in token_features):
            self.feature_names.append(f"{prefix}year")
        self.feature_names += [
            f"{prefix}{category}" for category in categories if category in _CLAUSE_CATEGORIES
        ]
        if words and "in" in words[0].categories:
            self.feature_names.append(
                f"{prefix}{words[0].text.capitalize() if words[0].is_capital else 'in'}"
            )

    def add_neighbours(
        self,
        prefix: str,
        before: Sequence[_TokenFeatures],
        after: Sequence[_TokenFeatures],
        clauses_left: int,
    ) -> None:
        """Add features of the end of the clause before, of the beginning of the clause after, and
        of the number of clauses that follow."""
        next_start = next(
            (each.shape for each in after if each.is_word or each.shape[0] != "p"), ""
        )
        self.feature_names += [
            f"{prefix}<{before[-1].text if before else ''}",
            f"{prefix}>{next_start}",
            f"{prefix}-{min(clauses_left, 4)}",
        ]


_CLAUSE_CATEGORIES = frozenset({
    "abbreviated", "edition", "editor", "function", "meeting", "month", "pages", "periodical",
    "place", "publisher", "report", "school", "series", "volume", "web",
})  # fmt: skip


def _clauses(
    token_features: Sequence[_TokenFeatures], prefix: str, ends: Sequence[bool]
) -> list[_Clause]:
    """Return the clause of each token. A label before the reference has the number 0, as the first
    clause after it has."""
    spans: list[tuple[int, int]] = []
    begin = 0
    for index, end in enumerate(ends):
        if end or index + 1 == len(ends):
            spans.append((begin, index + 1))
            begin = index + 1
    clause_tokens = [token_features[slice(*span)] for span in spans]
    has_label = bool(clause_tokens) and not any(each.is_word for each in clause_tokens[0])
    clauses = [
        _Clause(max(number - has_label, 0), prefix, stretch)
        for number, stretch in enumerate(clause_tokens)
    ]
    length_features = [clause.feature_names[0] for clause in clauses]
    for number, clause in enumerate(clauses):
        before = clause_tokens[number - 1] if number else ()
        after = clause_tokens[number + 1] if number + 1 < len(clauses) else ()
        clause.add_neighbours(prefix, before, after, len(clauses) - number - 1)
        if after:
            clause.feature_names.append("n" + length_features[number + 1])
        if before:
            clause.feature_names.append("b" + length_features[number - 1])
    return [clause for clause, span in zip(clauses, spans, strict=True) for _ in range(*span)]


def _ends(
    token_features: Sequence[_TokenFeatures],
    tokens: Sequence[Token],
    quotations: Sequence[tuple[int, int]],
) -> list[str]:
    """Return for each token what ends with it: "sentence", "phrase" or "". A quotation is one
    sentence."""
    ends = [
        "sentence"
        if _ends_sentence(token_features, tokens, index)
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


def _ends_sentence(
    token_features: Sequence[_TokenFeatures], tokens: Sequence[Token], index: int
) -> bool:
    """Return whether a token is a full stop after a word, and not after an initial or inside an
    abbreviation or a number."""
    text = tokens[index].text
    if text not in ".?!" or not index:
        return False
    previous = token_features[index - 1]
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
            and not token_features[index + 1].categories
        ):
            return False  # "Int. conf.": an abbreviation
    if text != "." or not previous.is_word:
        return True
    if len(previous.text) == 2 and previous.text.isupper():  # "Smith AB. Title", not "Smith, A.B."
        return (
            index > 1
            and token_features[index - 2].is_word
            and len(token_features[index - 2].text) > 2
        )
    if (
        previous.categories
        and _NUMBERED.intersection(previous.categories)
        and len(previous.text) < 4
    ):
        return False  # "no. 4", "p. 12"
    return len(previous.text) > 2 or previous.text.islower()


# Categories of words that a number follows.
_NUMBERED = frozenset({"volume", "issue", "pages"})
