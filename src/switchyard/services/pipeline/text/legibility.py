"""Decide whether the text of a page can be read, by its characters alone, for any script.

Fonts without a map to Unicode give replacement, control or private characters. Wrong maps give
letters that look like text: in scripts that never stand side by side, in syllables that nobody
writes, or in a cipher. The limits below hold for every language; code, mathematics and lists of
numbers stay below them, and so count as readable.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from itertools import pairwise

from switchyard.services.common.files.charset_choice import is_rare_char
from switchyard.services.pipeline.text.layout import Line

MAX_UNREADABLE_SHARE = 0.15
"""A page can't be read if this part of its characters, or of the area of its text, is unreadable.
Bullets and symbols of private fonts take some 3 %."""
_UNREADABLE_CATEGORIES = frozenset(("Cc", "Cn", "Co", "Cs"))
_MIN_PAIRS = 120
"""Fewest pairs of neighbouring letters from which a text is judged."""
_MIN_GUESSED_PAIRS = 20
"""Fewest pairs of neighbouring letters from which `may_be_language` judges a short text."""
_MAX_CONSONANT_PAIR_SHARE = 0.46
"""In Latin words of a language, 0.15 to 0.4 of the pairs of letters are two consonants; in a
cipher, more than this share."""
_MAX_VOWEL_PAIR_SHARE = 0.5
"""In a language, up to 0.3 of the pairs are two vowels; in a cipher, more than this share."""
_MAX_CASE_CHANGE_SHARE = 0.15
"""In programs, up to 0.05 of the pairs are a small letter and a capital; in a cipher, more than
this share."""
_MAX_NON_ASCII_SHARE = 0.6
"""Largest share of Latin letters that are not ASCII: 0.3 in Vietnamese, almost all in a text in
Cyrillic or Arabic that was taken for Latin."""
_MAX_MIXED_PAIR_SHARE = 0.15
"""Largest share of pairs of neighbouring letters that are of two scripts."""
_MAX_RARE_CHAR_SHARE = 0.5
"""Largest share of Chinese characters or Korean syllables that are in no list of those in use."""
_VOWELS_BY_SCRIPT = {
    "LATIN": (frozenset("aeiouy"), re.compile("[a-z]{3,30}")),
    "CYRILLIC": (frozenset("аеиоуыэюяієѣ"), re.compile("[а-яѐ-џ]{3,30}")),
    "GREEK": (frozenset("αεηιουω"), re.compile("[α-ω]{3,30}")),
}
"""By script: its vowels, and the pattern of its words, without accents."""
_WORD = re.compile(r"[^\W\d_]{3,30}")
_MIN_WORDS = 30
"""Different words that a text must have before its vowels are determined."""
_MIN_ALPHABET = 14
"""Smallest number of different letters in a language's text; numbers written with letters have
fewer."""
_MIN_ALTERNATION_SHARE = 0.6
"""Smallest share of pairs that are a vowel and a consonant: languages have 0.7 to 0.9."""
_EXCHANGED_LIMITS = ((0.45, 0.15), (0.6, 0.25))
"""Each pair is (`max_shared`, `min_lost`); letters are exchanged if one pair holds. `max_shared`:
of the letters that alternate like vowels, fewer than this share are the script's vowels (languages
have 0.6 and more). `min_lost`: the share of pairs that alternate falls by more than this if the
script's vowels take the place of those letters (languages have 0 to 0.25)."""
_MAX_VOWELLESS_SHARE = 0.1
"""Up to this share of the Latin words may have no vowel: there are such names in programs."""
_ONE_BYTE_CHARSETS = ("cp1252", "latin-1", "cp1251", "koi8-r", "cp866", "mac-roman")
_UTF8_SEQUENCE = re.compile(
    rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}"
)
_MIN_UTF8_SEQUENCES = 5
_MOJIBAKE_SHARE = 0.8
"""Smallest share of the non-ASCII characters that are UTF-8 read in another charset."""
_LATIN_RUN = re.compile("[A-Za-z\u00c0-\u024f\u1e00-\u1eff]+")
_MAX_WORD_LETTERS = 30
"""Longest word, in letters; a longer one is a sequence or a code."""
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")
_MIXABLE_SCRIPTS = frozenset(("LATIN", "GREEK", "CJK", "COPTIC"))
"""Scripts that may stand in one word: in formulas, and in Chinese, Japanese and Korean."""


def is_unreadable(lines: Sequence[Line]) -> bool:
    """Return whether the text of a page with these lines can't be read."""
    unreadable_chars = all_chars = 0
    unreadable_area = total_area = 0.0
    for line in lines:
        text = line.text
        line_chars = len(text) - text.count(" ")
        if not line_chars:
            continue
        unreadable_in_line = 0 if text.isascii() else sum(map(_is_unreadable_char, text))
        line_area = max(line.x1 - line.x0, 0.0) * max(line.y1 - line.y0, 0.0)
        unreadable_chars, all_chars = unreadable_chars + unreadable_in_line, all_chars + line_chars
        unreadable_area, total_area = (
            unreadable_area + line_area * unreadable_in_line / line_chars,
            total_area + line_area,
        )
    if not all_chars:
        return False
    if (
        unreadable_chars > MAX_UNREADABLE_SHARE * all_chars
        or unreadable_area > MAX_UNREADABLE_SHARE * total_area > 0
    ):
        return True
    return is_gibberish(" ".join(line.text for line in lines))


def mark_controls(text: str) -> str:
    """Return a line of a page, with U+FFFD for control characters that stand for letters: where a
    font has no map, there are many of them."""
    controls = _CONTROL.findall(text)
    if 10 * len(controls) < len(text):
        return text
    return _CONTROL.sub("\ufffd", text)


def is_gibberish(text: str, *, min_pairs: int = _MIN_PAIRS) -> bool:
    """Return whether a text can't be in any language; False if it is too short to tell, with fewer
    than `min_pairs` pairs of neighbouring letters."""
    return (
        _is_cipher(text, min_pairs)
        or _mixes_scripts(text, min_pairs)
        or _has_rare_chars(text, min_pairs)
        or _is_mojibake(text)
        or any(_has_exchanged_letters(text, script, min_pairs) for script in _VOWELS_BY_SCRIPT)
    )


def may_be_language(text: str) -> bool:
    """Return whether a short text in Latin letters may be in a language. The letters were guessed
    from the codes of a font without a map to Unicode."""
    pairs = _latin_pairs(text)
    has_unreadable = any(map(_is_unreadable_char, text))
    return (
        len(pairs) >= _MIN_GUESSED_PAIRS
        and not has_unreadable
        and not is_gibberish(text, min_pairs=_MIN_GUESSED_PAIRS)
    )


def _is_unreadable_char(char: str) -> bool:
    if char.isalnum() or char == " ":
        return False
    return char == "\ufffd" or (
        unicodedata.category(char) in _UNREADABLE_CATEGORIES and char not in "\t\n\r"
    )


def _latin_pairs(text: str) -> list[tuple[str, str]]:
    """Return the pairs of neighbouring Latin letters, without accents. Words in capitals, which may
    be abbreviations, are left out where there are others."""
    runs = [run for run in _LATIN_RUN.findall(text) if 3 <= len(run) <= _MAX_WORD_LETTERS]
    not_capitals = [run for run in runs if not run.isupper()]
    return [pair for run in (not_capitals or runs) for pair in pairwise(map(_without_accent, run))]


def _is_cipher(text: str, min_pairs: int) -> bool:
    pairs = _latin_pairs(text)
    if len(pairs) < min_pairs:
        return False
    if len(pairs) >= _MIN_PAIRS and len({a.lower() for a, _ in pairs}) < _MIN_ALPHABET:
        return False
    vowels = [(a.lower() in "aeiouy", b.lower() in "aeiouy") for a, b in pairs]
    two_consonants = sum(not a and not b for a, b in vowels)
    two_vowels = sum(a and b for a, b in vowels)
    case_changes = sum(a.islower() and b.isupper() for a, b in pairs)
    return (
        two_consonants > _MAX_CONSONANT_PAIR_SHARE * len(pairs)
        or two_vowels > _MAX_VOWEL_PAIR_SHARE * len(pairs)
        or case_changes > _MAX_CASE_CHANGE_SHARE * len(pairs)
    )


def _has_exchanged_letters(text: str, script: str, min_pairs: int) -> bool:
    """Return whether letters that are not the script's vowels alternate with the others as vowels
    do in every language: then each letter stands for another one, as with a wrong map of a font or
    a wrong charset. Sukhotin's algorithm finds the letters that alternate."""
    vowels, word_pattern = _VOWELS_BY_SCRIPT[script]
    if script != "LATIN" and text.isascii():
        return False
    words = _distinct_words(text, word_pattern)
    vowelless = sum(vowels.isdisjoint(word) for word in words)
    if len(words) < _MIN_WORDS or (
        script == "LATIN" and vowelless <= _MAX_VOWELLESS_SHARE * len(words)
    ):
        return False
    pairs = Counter(pair for word in words for pair in pairwise(word))
    pair_count = pairs.total()
    if pair_count < max(min_pairs, _MIN_PAIRS) or len(set().union(*words)) < _MIN_ALPHABET:
        return False
    alternating = _alternating_letters(pairs)
    frequency: Counter[str] = Counter()
    for (first, _), times in pairs.items():
        frequency[first] += times
    shared_count = sum(frequency[char] for char in alternating & vowels)
    shared_part = shared_count / (sum(frequency[char] for char in alternating) or 1)
    alternation = _count_alternating(pairs, alternating) / pair_count
    lost_alternation = alternation - _count_alternating(pairs, vowels) / pair_count
    return alternation > _MIN_ALTERNATION_SHARE and any(
        shared_part < max_shared and lost_alternation > min_lost
        for max_shared, min_lost in _EXCHANGED_LIMITS
    )


def _distinct_words(text: str, word_pattern: re.Pattern[str]) -> set[str]:
    """Return the words of a script, each once, without accents. Words in capitals are left out,
    unless they are the most."""
    runs = _WORD.findall(text)
    not_capitals = [run for run in runs if not run.isupper()]
    runs_in_use = not_capitals if 2 * len(not_capitals) > len(runs) else runs
    plain_runs = ("".join(map(_without_accent, run)).lower() for run in runs_in_use)
    return {word for run in plain_runs for word in word_pattern.findall(run)}


def _alternating_letters(pairs: Mapping[tuple[str, str], int]) -> set[str]:
    """Return the letters that alternate with the others (Sukhotin, 1962)."""
    neighbours: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for (a, b), times in pairs.items():
        if a != b:
            neighbours[a][b] += times
            neighbours[b][a] += times
    scores = {char: counts.total() for char, counts in neighbours.items()}
    alternating: set[str] = set()
    while scores:
        char = max(scores, key=lambda each: (scores[each], each))
        if scores.pop(char) <= 0:
            break
        alternating.add(char)
        for other, times in neighbours[char].items():
            if other in scores:
                scores[other] -= 2 * times
    return alternating


def _count_alternating(pairs: Mapping[tuple[str, str], int], vowels: Set[str]) -> int:
    return sum(times for (a, b), times in pairs.items() if (a in vowels) != (b in vowels))


def _is_mojibake(text: str) -> bool:
    """Return whether a text in UTF-8 was read in another charset: encoded in that charset, almost
    all of its characters beyond ASCII are UTF-8."""
    if text.isascii():
        return False
    beyond_ascii = sum(char > "\x7f" for char in text)
    for charset in _ONE_BYTE_CHARSETS:
        data = text.encode(charset, "replace")
        lengths = [len(each) for each in _UTF8_SEQUENCE.findall(data)]
        if len(lengths) >= _MIN_UTF8_SEQUENCES and sum(lengths) > _MOJIBAKE_SHARE * beyond_ascii:
            return True
    return False


def _mixes_scripts(text: str, min_pairs: int) -> bool:
    """Return whether too many Latin letters have accents, or too many neighbours are of scripts
    that never stand in one word."""
    if text.isascii():
        return False
    latin = [char for char in text if char.isalpha() and "A" <= char < "\u0250"]
    accented = sum(char > "\x7f" for char in latin)
    if len(latin) >= min_pairs and accented > _MAX_NON_ASCII_SHARE * len(latin):
        return True
    scripts = [_script(char) if char.isalpha() else "" for char in text]
    pairs = [(a, b) for a, b in pairwise(scripts) if a and b]
    mixed_pairs = sum(a != b and not _MIXABLE_SCRIPTS.issuperset((a, b)) for a, b in pairs)
    return len(pairs) >= min_pairs and mixed_pairs > _MAX_MIXED_PAIR_SHARE * len(pairs)


def _has_rare_chars(text: str, min_pairs: int) -> bool:
    east_asian = [
        char for char in text if "\u3400" <= char <= "\u9fff" or "\uac00" <= char <= "\ud7a3"
    ]
    rare = sum(map(is_rare_char, east_asian))
    return 2 * len(east_asian) >= min_pairs and rare > _MAX_RARE_CHAR_SHARE * len(east_asian)


@lru_cache(maxsize=4_096)
def _script(char: str) -> str:
    """Return the first word of a letter's name, which is its script."""
    name = unicodedata.name(unicodedata.normalize("NFKC", char)[0], "UNNAMED").split()[0]
    return "CJK" if name in {"HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC"} else name


@lru_cache(maxsize=4_096)
def _without_accent(char: str) -> str:
    return unicodedata.normalize("NFKD", char)[0]
