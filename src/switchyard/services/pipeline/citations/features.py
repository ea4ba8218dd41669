"""What the model sees of each token: its shape, its kind of word, its neighbours, its clause."""

import itertools
import tomllib
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from importlib.resources import files

from switchyard.services.pipeline.citations.tokens import Token

_OPENING, _CLOSING, _STRAIGHT = "“«„‘", "”»’", "\"'"


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
    return {word: tuple(dict.fromkeys(named)) for word, named in kinds.items()}


class _Word:
    """What is known of a token wherever it stands."""

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
        brief = [shape, *(f"k:{named}" for named in self.kinds)]
        self.here = [*brief]
        if self.kinds:
            self.here.append(f"w:{lower}")
        elif self.is_word:
            self.here.append(f"e:{lower[-3:]}" if len(text) > 4 else f"l:{len(text)}")
            if len(text) > 2 and not any(
                letter in "aeiouyáéíóúäöüàèìòùâêîôûãõåøæœ" for letter in lower
            ):
                self.here.append("vowelless")
        self.before = [f"-1{name}" for name in brief]
        self.after = [f"+1{name}" for name in brief]
        self.before_last = [f"-2{name}" for name in brief]
        self.after_next = [f"+2{name}" for name in brief]
        if self.kinds and len(self.kinds) < 3:
            self.before.append(f"-1w:{lower}")
            self.after.append(f"+1w:{lower}")


_Ends = Callable[[Sequence[_Word], Sequence[Token], int], bool]

# Names and words of a paper's references come again and again; what is kept is bounded.
_word = lru_cache(maxsize=20_000)(_Word)


def _shape(text: str, kind: str) -> str:
    if kind == "number":
        if len(text) == 4 and 1500 <= int(text) <= 2039:
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
    """For each token the names of what is true of it. Linear in the number of tokens."""
    words = [_word(token.text, token.kind) for token in tokens]
    sentences = _clauses(words, tokens, "S:", _ends_sentence)
    phrases = _clauses(words, tokens, "P:", _ends_phrase)
    far = len(words) - 1
    quotes = _Quotes()
    seen_year = seen_number = False
    depth = 0
    names: list[list[str]] = []
    for place, word in enumerate(words):
        quotes.before(tokens, place)
        sentence, phrase = sentences[place], phrases[place]
        mine = [
            *word.here,
            *(words[place - 1].before if place else ["first"]),
            *(words[place - 2].before_last if place > 1 else ()),
            *(words[place + 1].after if place < far else ["last"]),
            *(words[place + 2].after_next if place + 1 < far else ()),
            *sentence.names,
            *phrase.names,
            f"at:{min(sentence.number, 5)}|{int(seen_year)}{int(quotes.closed)}{int(quotes.open)}",
            f"ph:{min(phrase.number, 8)}",
            f"left:{min(len(words) - place, 40) // 5}",
            f"pos:{min(place, 40) // 4}",
        ]
        if place and tokens[place - 1].end == tokens[place].start:
            mine.append("glued")
        if quotes.open:
            mine.append("quoted")
        if depth:
            mine.append("bracketed")
        if seen_number:
            mine.append(f"number|{min(sentence.number, 5)}")
        names.append(mine)
        quotes.after(tokens, place)
        if word.text in "([":
            depth += 1
        elif word.text in ")]" and depth:
            depth -= 1
        if word.here[0] == "year":
            seen_year = True
        elif word.here[0].startswith("d") and place > 3:
            seen_number = True
    return names


class _Quotes:
    """Whether a quotation is open; straight marks open at a word's left and close at its right."""

    def __init__(self) -> None:
        self.open = self.closed = False

    def before(self, tokens: Sequence[Token], place: int) -> None:
        text = tokens[place].text
        if text in _OPENING or (text in _STRAIGHT and not self.open and _opens(tokens, place)):
            self.open = True

    def after(self, tokens: Sequence[Token], place: int) -> None:
        text = tokens[place].text
        if self.open and (text in _CLOSING or (text in _STRAIGHT and not _opens(tokens, place))):
            self.open, self.closed = False, True


def _opens(tokens: Sequence[Token], place: int) -> bool:
    """Whether nothing is glued to a mark's left, and something to its right."""
    before = place > 0 and tokens[place - 1].end == tokens[place].start
    after = place + 1 < len(tokens) and tokens[place + 1].start == tokens[place].end
    return after and not before


class _Clause:
    """A stretch between two full stops (or commas), and what is true of it as a whole."""

    __slots__ = ("names", "number")

    def __init__(self, number: int, kind: str, words: Sequence[_Word]) -> None:
        self.number = number
        kinds = {named for word in words for named in word.kinds}
        letters = [word for word in words if word.is_word]
        capital = sum(word.is_capital for word in letters if "function" not in word.kinds)
        counted = sum("function" not in word.kinds for word in letters)
        share = (
            "none"
            if not counted
            else "all"
            if capital == counted
            else "one"
            if capital <= 1
            else "most"
            if 2 * capital > counted
            else "few"
        )
        size = len(letters)
        length = str(size) if size < 4 else "4-6" if size < 7 else "7-12" if size < 13 else "long"
        digits = any(word.here[0].startswith("d") for word in words)
        initials = sum(word.here[0] == "X1" for word in words)
        self.names = [f"{kind}{length}{share}", f"{kind}i{min(initials, 3)}"]
        if digits:
            self.names.append(f"{kind}digits")
        if any(word.here[0] == "year" for word in words):
            self.names.append(f"{kind}year")
        self.names += [f"{kind}{named}" for named in kinds if named in _TELLING]
        if letters and "in" in letters[0].kinds:
            self.names.append(f"{kind}In")


_TELLING = frozenset({
    "abbreviated", "edition", "editor", "function", "meeting", "month", "pages", "periodical",
    "place", "publisher", "report", "school", "series", "volume", "web",
})  # fmt: skip


def _clauses(
    words: Sequence[_Word], tokens: Sequence[Token], kind: str, ends: _Ends
) -> list[_Clause]:
    """The clause of each token."""
    spans: list[tuple[int, int]] = []
    begin = 0
    for place in range(len(words)):
        if place + 1 == len(words) or ends(words, tokens, place):
            spans.append((begin, place + 1))
            begin = place + 1
    clauses = [_Clause(number, kind, words[slice(*span)]) for number, span in enumerate(spans)]
    for clause, following in itertools.pairwise(clauses):
        clause.names.append("n" + following.names[0])
    return [clause for clause, span in zip(clauses, spans, strict=True) for _ in range(*span)]


def _ends_sentence(words: Sequence[_Word], tokens: Sequence[Token], place: int) -> bool:
    """A full stop after a word, not after an initial or inside an abbreviation or a number."""
    text = tokens[place].text
    if text in _CLOSING and text != "’":
        return True
    if text not in ".?!" or not place:
        return False
    following = tokens[place + 1] if place + 1 < len(tokens) else None
    if following and following.start == tokens[place].end and following.text not in '"”’)]':
        return False
    before = words[place - 1]
    return len(before.text) > 2 or not before.is_word or before.text.islower()


def _ends_phrase(words: Sequence[_Word], tokens: Sequence[Token], place: int) -> bool:
    return tokens[place].text in ",;:()" or _ends_sentence(words, tokens, place)
