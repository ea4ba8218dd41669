"""Whether the text of a page can be read, told from its characters alone, for any script.

Fonts without a map to Unicode give replacement, control or private characters; wrong maps give
letters that look like text: of scripts that never stand side by side, of syllables that nobody
writes, or of a cipher. What is measured are shares that hold for every language, so that code,
mathematics and lists of numbers pass as well.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from switchyard.services.pipeline.text.layout import Line

UNREADABLE = 0.15
"""Part of a page's characters, or of the area of its text, from which on it can't be read if they
are unreadable. Bullets and symbols of private fonts take some 3 %."""
_UNREADABLE_CATEGORIES = frozenset(("Cc", "Cn", "Co", "Cs"))
_MIN_LETTERS = 120
"""Neighbouring letters, at least, from which something is concluded."""
_FEW_LETTERS = 20
_CONSONANTS = 0.46
"""Part of neighbouring letters of Latin words that are both consonants: 0.15 to 0.4 in languages,
more in ciphers."""
_VOWELS = 0.5
"""Part that are both vowels: at most 0.3 in languages."""
_CASE = 0.15
"""Part that are a small letter and a capital: up to 0.05 in programs."""
_FOREIGN = 0.6
"""Part of Latin letters that are beyond ASCII: 0.3 in Vietnamese, almost all of a text in Cyrillic
or Arabic that was taken for Latin."""
_MIXED = 0.15
"""Part of neighbouring letters that are of two scripts."""
_RARE = 0.5
"""Part of Chinese characters or Korean syllables that are in no list of those in use."""
_LATIN_RUN = re.compile("[A-Za-z\u00c0-\u024f\u1e00-\u1eff]+")
_MAX_WORD = 30
"""Letters: what is longer is a sequence or a code."""
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")
_MIXED_SCRIPTS = frozenset(("LATIN", "GREEK", "CJK", "COPTIC"))
"""Scripts that stand in one word: in formulas, and in Chinese, Japanese and Korean."""
_COMMON_HAN = ("gb2312", "big5", "shift_jis", "euc_kr")
_COMMON_ROWS = {"gb2312": (0xB0, 0xD7), "big5": (0xA4, 0xC6), "shift_jis": (0x88, 0x98)} | {
    "euc_kr": (0xB0, 0xC8)
}
"""First bytes of the characters that are used most, by character set."""


def is_unreadable(lines: Sequence[Line]) -> bool:
    """Return whether the text of a page, of which these are the lines, can't be read."""
    bad = total = 0
    bad_area = area = 0.0
    for line in lines:
        text = line.text
        letters = len(text) - text.count(" ")
        if not letters:
            continue
        found = 0 if text.isascii() else sum(map(_is_unreadable, text))
        size = max(line.x1 - line.x0, 0.0) * max(line.y1 - line.y0, 0.0)
        bad, total = bad + found, total + letters
        bad_area, area = bad_area + size * found / letters, area + size
    if not total:
        return False
    if bad > UNREADABLE * total or bad_area > UNREADABLE * area > 0:
        return True
    return is_gibberish(" ".join(line.text for line in lines))


def marked(text: str) -> str:
    """Return a line as it is in the file, with U+FFFD for control characters that stand for
    letters: where a font has no map, there are many of them."""
    controls = _CONTROL.findall(text)
    if 10 * len(controls) < len(text):
        return text
    return _CONTROL.sub("\ufffd", text)


def is_gibberish(text: str, *, least: int = _MIN_LETTERS) -> bool:
    """Return whether a text of letters and signs can't be one of any language; False where it is
    too short to tell, with fewer neighbouring letters than `least`."""
    return _is_cipher(text, least) or _is_foreign(text, least) or _is_rare(text, least)


def is_text(text: str) -> bool:
    """Return whether a short text in Latin letters may be one: for letters that were guessed."""
    pairs = _latin_pairs(text)
    has_unreadable = any(map(_is_unreadable, text))
    return (
        len(pairs) >= _FEW_LETTERS
        and not has_unreadable
        and not is_gibberish(text, least=_FEW_LETTERS)
    )


def _is_unreadable(char: str) -> bool:
    if char.isalnum() or char == " ":
        return False
    return char == "\ufffd" or (
        unicodedata.category(char) in _UNREADABLE_CATEGORIES and char not in "\t\n\r"
    )


def _latin_pairs(text: str) -> list[tuple[str, str]]:
    """Return the pairs of neighbouring Latin letters, without accents, but for words in capitals,
    which may be abbreviations, where there are others."""
    runs = [run for run in _LATIN_RUN.findall(text) if 3 <= len(run) <= _MAX_WORD]
    mixed = [run for run in runs if not run.isupper()]
    return [pair for run in (mixed or runs) for pair in pairwise(map(_plain, run))]


def _is_cipher(text: str, least: int) -> bool:
    pairs = _latin_pairs(text)
    if len(pairs) < least:
        return False
    vowels = [(a.lower() in "aeiouy", b.lower() in "aeiouy") for a, b in pairs]
    consonants = sum(not a and not b for a, b in vowels)
    both = sum(a and b for a, b in vowels)
    turns = sum(a.islower() and b.isupper() for a, b in pairs)
    return (
        consonants > _CONSONANTS * len(pairs)
        or both > _VOWELS * len(pairs)
        or turns > _CASE * len(pairs)
    )


def _is_foreign(text: str, least: int) -> bool:
    """Latin letters that are not, and letters of scripts that never stand in one word."""
    if text.isascii():
        return False
    latin = [char for char in text if char.isalpha() and "A" <= char < "\u0250"]
    if len(latin) >= least and sum(char > "\x7f" for char in latin) > _FOREIGN * len(latin):
        return True
    scripts = [_script(char) if char.isalpha() else "" for char in text]
    pairs = [(a, b) for a, b in pairwise(scripts) if a and b]
    mixed = sum(a != b and not _MIXED_SCRIPTS.issuperset((a, b)) for a, b in pairs)
    return len(pairs) >= least and mixed > _MIXED * len(pairs)


def _is_rare(text: str, least: int) -> bool:
    han = [char for char in text if "\u3400" <= char <= "\u9fff" or "\uac00" <= char <= "\ud7a3"]
    return 2 * len(han) >= least and sum(map(_is_rare_char, han)) > _RARE * len(han)


@lru_cache(maxsize=4_096)
def _is_rare_char(char: str) -> bool:
    for charset in _COMMON_HAN:
        try:
            encoded = char.encode(charset)
        except UnicodeEncodeError:
            continue
        low, high = _COMMON_ROWS.get(charset, (0, 0xFF))
        if low <= encoded[0] <= high and (char >= "\uac00") == (charset == "euc_kr"):
            return False
    return True


@lru_cache(maxsize=4_096)
def _script(char: str) -> str:
    """Return the first word of a letter's name, which is its script."""
    name = unicodedata.name(unicodedata.normalize("NFKC", char)[0], "UNNAMED").split()[0]
    return "CJK" if name in {"HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC"} else name


@lru_cache(maxsize=4_096)
def _plain(char: str) -> str:
    return unicodedata.normalize("NFKD", char)[0]
