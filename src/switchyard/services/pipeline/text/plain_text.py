"""Clean plain text, and cut it into paragraphs, sentences and words, for any script.

Pure functions without a language model or a dictionary: they serve summaries, chunks, snippets and
the offline embedder, which must all cut a text at the same places. Texts are foreign and long, so
everything here takes time in proportion to the text, whatever it contains: no pattern starts again
within text that it has just read without a match.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import lru_cache

from switchyard.services.pipeline.text.stopwords import stop_words_among

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufeff\ufffe\uffff\u00ad]")
_UNREADABLE = re.compile(r"[\ud800-\udfff\ufffd]+")
_INVISIBLE = re.compile("[\u00ad\u2060]")
"""Soft hyphens and joiners: they stand within words, but are no part of them."""
_BLANK_LINES = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")
_SPACES = re.compile(r"[ \t\u00a0\u2000-\u200a\u202f\u3000]+")
_HYPHENATED = re.compile(r"(?<=[^\W_])([-\u2010])\n(?=[^\W_])")
_ADDRESS = re.compile(r"(?:://|www\.|@)\S*$")
_MAX_ADDRESS_LENGTH = 200
"""Characters before a line's end among which an address is looked for."""

_NON_ASCII = re.compile(r"[^\x00-\x7f]+")
"""Characters that folding may change."""
_CACHED_CHARACTERS = 4_096
"""Number of characters whose folded form is cached."""
_MAX_REPLACEMENTS = 32
"""Most different characters for which the text is searched once each. Where there are more, every
character is looked up in a single pass."""

_CJK_RANGES = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_CJK = re.compile(f"[{_CJK_RANGES}]+")
_CJK_BREAK = re.compile(f"(?<=[{_CJK_RANGES}])\n(?=[{_CJK_RANGES}])")
WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
"""A word of a folded text, where spaces are written between words."""
_COMBINING_MARK = re.compile(
    "[\u0300-\u036f\u0591-\u05bd\u064b-\u065f\u0670\u0900-\u0dff\u0e31-\u0eff]"
)
_RAISED = re.compile("[⁰¹²³⁴-⁹]++")
_LOWERED_NUMBER = re.compile("[₀-₉]")
_INVISIBLE_OR_SHIFTED = frozenset("\u00ad\u2060⁰¹²³⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉")
"""Soft hyphens and joiners, and raised and lowered numbers."""
_LOWERED = re.compile(r"(?<![^\W_])([^\W\d_⁰¹²³⁴-⁹₀-₉]++)[₀-₉]++(?![^\W_])")

SENTENCE_ENDS = frozenset(".!?…\u061f\u06d4\u0964\u0965。！？｡")

_SENTENCE_END = re.compile(
    r"""
    (?:
        (?<![.!?…\u061f\u06d4\u0964\u0965])  # only where a run of marks begins, and the whole run
        [.!?…\u061f\u06d4\u0964\u0965]++     # Latin, Cyrillic, Arabic, Urdu, Indic
        ["'”’»)\]]*+
        (?=\s)
      | [。！？｡]+[」』”’)）]*            # no space follows in Chinese and Japanese
    )
    """,
    re.VERBOSE,
)
_SENTENCE_TAIL = 24
"""Number of characters before a full stop by which an abbreviation, an initial or an ordinal is
recognised."""
_MAX_MARKS = 30
"""Combining marks that one letter may have (Unicode's stream-safe text format)."""
_NOT_AN_END = re.compile(
    r"""(?:^|[\s(\[„"“])
    (?: [^\W\d_]                                  # an initial: J. Smith, z. B.
      | \d{1,2}                                   # an ordinal or a number in a list: 3. Oktober
      | (?:[^\W\d_]\.)+[^\W\d_]                   # e.g., U.S.
      | dr|mr|mrs|ms|prof|st|sr|jr|vs|cf|ca|al|no|nr|vol|pp|fig|eq|sec|approx|inc|ltd|dept
      | bzw|usw|vgl|abb|bspw|evtl|ggf|inkl|sog|hrsg|mio|mrd|str|etc|ed|eds
    )\.$""",
    re.VERBOSE | re.IGNORECASE,
)


def clean(text: str) -> str:
    """Return the text in the form that every later step expects.

    NUL and other control characters are removed and lone surrogates replaced (databases, JSON and
    Arrow refuse them), line ends are `\\n`, and between two paragraphs is one blank line.
    """
    if text.isprintable() and "\ufffd" not in text:  # true of most lines: only spaces need cleaning
        return " ".join(text.split())
    text = _UNREADABLE.sub("\ufffd", text)
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\u2028", "\n")
    text = text.replace("\x0c", "\n\n").replace("\u2029", "\n\n")
    text = _CONTROL.sub("", text)
    text = _SPACES.sub(" ", text)
    return _BLANK_LINES.sub("\n\n", text).strip()


def unwrap(block: str) -> str:
    """Join a paragraph's lines into one. A word that was broken between two lines is joined; a
    hyphen that may belong to the word stays."""
    block = block.strip()
    if "\n" in block:
        block = _HYPHENATED.sub(_line_end_hyphen, block)
        if not block.isascii():
            block = _CJK_BREAK.sub("", block)
    return " ".join(block.split())


def _line_end_hyphen(match: re.Match[str]) -> str:
    """Return the replacement of a hyphen between two lines: nothing where it cut a word in two; the
    hyphen before a capital (`Jean-Pierre`), beside a digit (`COVID-19`) and in an address."""
    text, start, end = match.string, match.start(), match.end()
    if not (text[start - 1].isalpha() and text[end].isalpha()):
        return match[1]
    if (
        text[end].isupper()
        and not (text[max(start - 2, 0) : start + 1] + text[end : end + 2]).isupper()
    ):
        return match[1]
    is_address = _ADDRESS.search(text[max(0, start - _MAX_ADDRESS_LENGTH) : start]) is not None
    return match[1] if is_address else ""


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a cleaned text, each as one line."""
    lines = (unwrap(block) for block in text.split("\n\n"))
    return [line for line in lines if line]


def sentences(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph. Abbreviations, initials and ordinals do not end one."""
    sentence_list = []
    start = 0
    for match in _SENTENCE_END.finditer(paragraph):
        end = match.end()
        # Only the tail is cut out: a list of initials is one sentence with thousands of dots.
        if _NOT_AN_END.search(paragraph[max(start, end - _SENTENCE_TAIL) : end].lstrip()):
            continue
        sentence_list.append(paragraph[start:end].strip())
        start = end
    last_sentence = paragraph[start:].strip()
    return [*sentence_list, last_sentence] if last_sentence else sentence_list


def words(text: str) -> list[str]:
    """Return the words of a text, normalised, in order; Chinese and Japanese as pairs of
    characters.

    Normalised: compatibility forms folded, lower case, without accents and vowel marks. Words with
    raised or lowered numbers can be found without them: `day¹²` is `day` and `12`, `CO₂` is `co2`
    and `co`.
    """
    return _cut_into_words(_fold(text, _without_accents))


def accented_words(text: str) -> list[str]:
    """Return the words of a text as `words` does, but with their accents, by which stemmers
    recognise endings. A text with vowel marks, which no stemmer needs, loses all its marks."""
    plain = normalised(text)
    return words(text) if has_combining_marks(plain) else _cut_into_words(plain)


def has_combining_marks(plain: str) -> bool:
    """Return whether a text has marks that are characters of their own, so that they would cut a
    word in two."""
    return not plain.isascii() and _COMBINING_MARK.search(plain) is not None


def without_accents(word: str) -> str:
    """Remove the accents of a word from `accented_words`, so that it equals the word from
    `words`."""
    return _fold(word, _without_accents)


def _cut_into_words(plain: str) -> list[str]:
    """Return the words of a folded text."""
    if not has_cjk(plain):  # most texts: tested once, and not word by word
        return WORD.findall(plain)
    pieces: list[str] = []
    for word in WORD.findall(plain):
        if has_cjk(word):
            pieces.extend(_pairs(word))
        else:
            pieces.append(word)
    return pieces


def normalised(text: str) -> str:
    """Return the text for an index that cuts it into words itself: folded as by `words`, but with
    the accents and vowel marks that dictionaries need. `CO₂` is `co2 co`, and `ﬁ` is `fi`."""
    return _fold(text, _compatibility_form)


def _separate_numbers(text: str) -> str:
    """Return the text with raised numbers (markers of notes, exponents) as words of their own. A
    word with a lowered number, as in formulas, is there twice: with the number and without."""
    spaced = _RAISED.sub(r" \g<0> ", text)
    # Few texts have lowered numbers, and the pattern for them looks at every word.
    return _LOWERED.sub(r"\g<0> \1", spaced) if _LOWERED_NUMBER.search(spaced) else spaced


def has_cjk(word: str) -> bool:
    """Return whether a word has Chinese or Japanese characters: it is cut into pairs of them."""
    return not word.isascii() and _CJK.search(word) is not None


def content_words(text: str) -> list[str]:
    """Return the words that say something of the subject: no stop words, no single letters."""
    all_words = words(text)
    stop_words = stop_words_among(all_words)
    return [word for word in all_words if word not in stop_words and len(word) > 1]


def count_words(text: str) -> int:
    """Return the number of words of a text; of Chinese and Japanese, one for two characters."""
    plain = _CJK.sub(" ", text)
    pairs = sum((run.end() - run.start() + 1) // 2 for run in _CJK.finditer(text))
    return sum(1 for _ in WORD.finditer(plain)) + pairs


def has_words(text: str) -> bool:
    """Return whether `count_words` finds any."""
    return WORD.search(text) is not None or _CJK.search(text) is not None


def shorten(text: str, limit: int) -> str:
    """Cut the text to `limit` characters at a word's end, with an ellipsis where it was cut."""
    if len(text) <= limit:
        return text
    head = text[: limit - 1]
    last_space = head.rfind(" ")
    return (head[:last_space] if last_space > limit // 2 else head).rstrip(" ,;:") + "…"


def _fold(text: str, fold: Callable[[str], str]) -> str:
    """Fold each character, in lower case, with numbers apart and without soft hyphens."""
    if text.isascii():
        return text.casefold()
    # Only characters of the text are replaced: searches fold many texts with few of them each.
    non_ascii = {char for char in set(text) if not char.isascii()}
    if not non_ascii.isdisjoint(_INVISIBLE_OR_SHIFTED):
        text = _separate_numbers(_INVISIBLE.sub("", text))
    # Character by character: `normalize` sorts every run of combining marks, by insertion, and in a
    # hostile text such a run can be as long as the text.
    folded = {char: fold(char) for char in non_ascii}
    replaced = _replace_chars(
        text, {char: other for char, other in folded.items() if other != char}
    )
    marks = "".join({char for char in "".join(folded.values()) if unicodedata.combining(char)})
    if marks:
        replaced = re.sub(f"([{marks}]{{{_MAX_MARKS}}})[{marks}]+", r"\1", replaced)
    return unicodedata.normalize("NFC", replaced.casefold()).replace("\u0640", "")


def _replace_chars(text: str, folded: Mapping[str, str]) -> str:
    """Replace characters by their folded forms, which contain none of these characters."""
    if len(folded) > _MAX_REPLACEMENTS:
        by_code = str.maketrans(dict(folded))
        return _NON_ASCII.sub(lambda run: run.group().translate(by_code), text)
    for char, other in folded.items():
        text = text.replace(char, other)
    return text


@lru_cache(maxsize=_CACHED_CHARACTERS)
def _compatibility_form(char: str) -> str:
    return unicodedata.normalize("NFKC", char)


@lru_cache(maxsize=_CACHED_CHARACTERS)
def _without_accents(char: str) -> str:
    decomposed = unicodedata.normalize("NFKD", char)
    # Classes from 10 up are accents and vowel marks; below are signs that Indic scripts need.
    return "".join(part for part in decomposed if unicodedata.combining(part) < 10)


def _pairs(word: str) -> list[str]:
    """Return a run of characters without spaces as overlapping pairs."""
    if len(word) < 3:
        return [word]
    return [word[start : start + 2] for start in range(len(word) - 1)]
