"""Split a reference into tokens: words, numbers, single signs, and each identifier or address."""

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

# Longer texts are not one reference: one with a hundred authors has about 2,000 characters.
MAX_REFERENCE_CHARS = 5_000


class Token(NamedTuple):
    """A stretch of the text; `kind` is "word", "number", "sign", or the kind of identifier."""

    text: str
    kind: str
    start: int
    end: int

    @property
    def is_identifier(self) -> bool:
        """Whether the token is a DOI, an arXiv id, a URL or an ISBN."""
        return self.kind in _IDENTIFIERS


# Each pattern takes linear time: no two neighbouring repeats can match the same character.
_IDENTIFIERS = {
    "doi": re.compile(
        r"(?:https?://)?(?:dx\.)?(?:doi\.org/)?\b(10\.\d{4,9}/[^\s\"<>{}|\\^`]+)", re.IGNORECASE
    ),
    "arxiv": re.compile(
        r"(?:https?://)?(?:arxiv\.org/(?:abs|pdf)/|arxiv\s?:\s?(?:abs/)?)(\d{4}\.\d{4,5}(?:v\d+)?|[a-z-]+(?:\.[A-Z]{2})?/\d{7})",
        re.IGNORECASE,
    ),
    "url": re.compile(r"(?:https?://|ftp://|www\.)[^\s\"<>{}|\\^`]+", re.IGNORECASE),
    "isbn": re.compile(
        r"\bISBN(?:-1[03])?:?\s?((?:97[89][- ]?)?\d(?:[- ]?\d){8}[- ]?[\dXx])\b", re.IGNORECASE
    ),
}
_WORD = re.compile(r"(\d+)|([^\W\d_]+(?:['’][^\W\d_]+)*)|(``|''|\S)")
_TRAILING_SIGNS = ".,;:!?'’”\"»"
_LINE_END_HYPHEN = re.compile(r"(?<=[^\W\d_])[-\u00ad\u00ac]\s*\n\s*(?=[a-zà-ÿ])")
_SOFT_HYPHEN = re.compile(r"[\u00ad\u00ac]\s*")
_BROKEN_ADDRESS = re.compile(r"(?<=[/\-_.=])[ \t]*\n[ \t]*(?=[\w/?=&%-])")
# Markup for print in a publisher's text: <italic>Water Research</italic>.
_MARKUP = re.compile(
    r"</?(?:i|b|em|strong|italic|bold|sup|sub|sc|span)(?: [^<>]{0,100})?>", re.IGNORECASE
)
_SPACES = re.compile(r"\s+")


def clean_reference(text: str) -> str:
    """Return a reference as one line: ligatures are resolved, and words that were hyphenated at the
    end of a line are joined."""
    text = unicodedata.normalize("NFC", text[:MAX_REFERENCE_CHARS])
    text = text.translate(_REPLACED_CHARACTERS)
    text = _MARKUP.sub("", text)
    text = _LINE_END_HYPHEN.sub("", text)
    text = _SOFT_HYPHEN.sub("", text)
    if "http" in text or "doi" in text.lower():
        text = _BROKEN_ADDRESS.sub("", text)
    return _SPACES.sub(" ", text).strip()


_REPLACED_CHARACTERS = {
    ord(sign): unicodedata.normalize("NFKC", sign) for sign in "ﬀﬁﬂﬃﬄﬅﬆ\u2007\u202f\u00a0"
} | {ord(sign): None for sign in "\u200b\u200c\u200d\u2060\ufeff\x00"}


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of a cleaned text, in order."""
    return list(_tokens(text))


def _tokens(text: str) -> Iterator[Token]:
    start = 0
    for kind, begin, end in _identifiers(text):
        yield from _plain_tokens(text, start, begin)
        yield Token(text[begin:end], kind, begin, end)
        start = end
    yield from _plain_tokens(text, start, len(text))


def _plain_tokens(text: str, start: int, end: int) -> Iterator[Token]:
    for match in _WORD.finditer(text, start, end):
        kind = ("number", "word", "sign")[(match.lastindex or 1) - 1]
        yield Token(match.group(), kind, match.start(), match.end())


def _identifiers(text: str) -> list[tuple[str, int, int]]:
    """Find identifiers, as kind, begin and end. Where two overlap (a DOI's address is a URL), the
    kind that is first in the table wins."""
    identifiers: list[tuple[str, int, int]] = []
    for kind, pattern in _IDENTIFIERS.items():
        for match in pattern.finditer(text):
            begin, end = match.start(), match.end()
            while end > begin and (
                text[end - 1] in _TRAILING_SIGNS or _ends_unopened(text, begin, end)
            ):
                end -= 1
            if end > begin and all(end <= first or begin >= last for _, first, last in identifiers):
                identifiers.append((kind, begin, end))
    return sorted(identifiers, key=lambda identifier: identifier[1])


def _ends_unopened(text: str, begin: int, end: int) -> bool:
    """Return whether the stretch ends with a bracket that it does not open."""
    pairs = {")": "(", "]": "[", ">": "<"}
    last = text[end - 1]
    return last in pairs and text.count(pairs[last], begin, end) < text.count(last, begin, end)


def identifier_value(token: Token) -> str:
    """Return the identifier in a token: a DOI without its address, only the digits of an ISBN."""
    match = _IDENTIFIERS[token.kind].match(token.text)
    if token.kind == "url" or match is None:
        return token.text
    if token.kind == "isbn":
        return re.sub(r"[- ]", "", match.group(1)).upper()
    return match.group(1).lower() if token.kind == "doi" else match.group(1)
