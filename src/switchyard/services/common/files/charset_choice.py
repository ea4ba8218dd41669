"""Find the charset of a text that is not UTF-8, whatever it is declared to be in.

Each charset in use is tried: the bytes are decoded, and each character is weighed by how usual it
is in the languages that are written in that charset. A declared charset is used unless another one
fits far better, or the text is short, for which the difference says little.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from functools import lru_cache
from unicodedata import category

from switchyard.services.common.files.charsets import (
    BEGINNING_BYTES,
    META_OVERRIDES,
    UTF_8,
    WINDOWS_1252,
    Charset,
    detected_charset,
)

_WESTERN = "äöüßéèàçñáíóúêâôîûëïãõåøæœùìò"
_CENTRAL = "ąęćłńóśźżáčďéěíňřšťúůýžőűöüäôîâăşţđľĺ"
_CYRILLIC = "оеаинтсрвлкмдпу"
_GREEK = "αοιετσνηυρπκμλςάέήίόύώ"
_ARABIC = "ايلمونتربعدهسقف"
_USUAL = {
    "windows-1252": _WESTERN,
    "windows-1251": _CYRILLIC,
    "koi8-r": _CYRILLIC,
    "windows-1250": _CENTRAL,
    "iso-8859-2": _CENTRAL,
    "windows-1254": "ışğçöüâîû",
    "windows-1257": "āčēģīķļņšūžąęėįųõäöü",
    "windows-1253": _GREEK,
    "windows-1255": "יוהלאתרמבשנ",
    "windows-1256": _ARABIC,
    "iso-8859-6": _ARABIC,
    "windows-874": "",
    "iso-8859-5": _CYRILLIC,
    "koi8-u": _CYRILLIC,
    "ibm866": _CYRILLIC,
    "shift_jis": "",
    "euc-jp": "",
    "euc-kr": "",
    "big5": "",
    "gb18030": "",
    "utf-16le": "",
    "utf-16be": "",
}
"""The charsets that are tried, with the small letters that are usual in each; of two that fit
equally well, the first is taken."""
_KANA = ("shift_jis", "euc-jp")
_PUNCTUATION = frozenset("¿¡ªº“”‘’„«»–—…€•·©®°§£´™№、。，！？：；「」（）《》・ー〜")
_IN_WORDS = frozenset("’·ー、。，・")
_ICELANDIC = frozenset("ðþý")
"""Letters that have the bytes of Turkish letters in another charset."""
_SIGNS = frozenset("²³¹µ±½¼¾×÷")
_UTF_16 = frozenset((Charset("utf-16le"), Charset("utf-16be")))
_COMMON_HAN = ("gb2312", "big5", "shift_jis", "euc_kr")
_COMMON_ROWS = {"gb2312": (0xB0, 0xD7), "big5": (0xA4, 0xC6), "shift_jis": (0x88, 0x98)} | {
    "euc_kr": (0xB0, 0xC8)
}
"""First bytes of the characters that are used most, by character set."""
_DECIDING_BYTE = re.compile(rb"[\x00\x0e-\x1f\x80-\xff]")
_TAG = re.compile(rb"<[^<>]{1,2000}>")
_NON_ASCII_BYTE = re.compile(rb"[\x80-\xff]")
_NON_ASCII_CHAR = re.compile(r"[^\x00-\x7f]")
_SAMPLE_BYTES = 32_768
_SAMPLE_CHARACTERS = 1_500
"""Characters of a text, from its first one beyond ASCII, that are weighed."""
_MIN_FIT = 0.3
"""Lowest fit at which an undeclared charset is chosen."""
_DECLARED_BONUS = 0.2
"""Difference by which a declared charset may fit worse than another one."""
_WESTERN_BONUS = 0.15
"""Bonus of windows-1252, which browsers assume for undeclared pages: other charsets must fit better
by more than this."""
_WESTERN_FIT = 0.5
"""Lowest fit at which a short text is taken for windows-1252."""
_FEW_LETTERS = 6
"""Number of characters beyond ASCII up to which a text is too short to contradict a declared
charset that has them all."""


def choose_charset(data: bytes, declared: Sequence[Charset | None] = ()) -> Charset | None:
    """Return the charset in which to read a text: the one that its bytes show, else the one that
    fits best, of the declared ones (the first counts most) and those in use; None where nothing is
    declared and nothing fits."""
    known = [each for each in declared if each is not None]
    detected = detected_charset(data, known[0] if known else None)
    if detected is not None:
        return detected
    first = _NON_ASCII_BYTE.search(data)
    if first is None:
        return known[0] if known else UTF_8
    sample = _TAG.sub(b" ", data[max(first.start() - 1, 0) :][:_SAMPLE_BYTES])
    samples = {True: data[:_SAMPLE_BYTES], False: sample}
    candidates = (*known, *map(Charset, _USUAL))
    fits = {each: _compute_fit(each, samples[each in _UTF_16]) for each in candidates}
    western_fit = fits[WINDOWS_1252]
    not_utf8 = [each for each in known if each != UTF_8]
    if len(_NON_ASCII_BYTE.findall(sample)) <= _FEW_LETTERS:
        for charset in not_utf8:
            if fits[charset] >= 0:
                return charset
        if western_fit >= _WESTERN_FIT:
            return WINDOWS_1252
        if not_utf8:
            return not_utf8[0]
    best = max(
        map(Charset, _USUAL), key=lambda each: max(fits[each], _preference(each, western_fit))
    )
    for charset in not_utf8:
        if fits[charset] >= fits[best] - _DECLARED_BONUS:
            return charset
    if fits[best] >= _MIN_FIT:
        return best
    return known[0] if known else None


def _preference(charset: Charset, fit: float) -> float:
    return fit + _WESTERN_BONUS if charset == WINDOWS_1252 else -1.0


def _compute_fit(charset: Charset, sample: bytes) -> float:
    """Return how usual the sample's characters beyond ASCII are, up to 1; -1 if it has none, or
    can't be decoded."""
    if charset == UTF_8:
        return -1.0  # `detected_charset` would have found it
    try:
        text = charset.decoder("strict")(sample, False)
    except UnicodeDecodeError:
        return -1.0
    matches = list(_NON_ASCII_CHAR.finditer(text))[:_SAMPLE_CHARACTERS]
    if not matches:
        return -1.0
    if charset.name not in _USUAL:
        return 1.0  # nobody declares it by mistake
    usual = _USUAL[charset.name]
    text = f"  {text} "
    return sum(_weigh_char(text, at.start() + 2, charset.name, usual) for at in matches) / len(
        matches
    )


def _weigh_char(text: str, at: int, charset: str, usual: str) -> float:
    before, char, after = text[at - 1], text[at], text[at + 1]
    is_beside_ascii = _is_ascii_letter(before) or _is_ascii_letter(after)
    if char in _PUNCTUATION:
        is_in_word = before.isalpha() and after.isalpha() and char not in _IN_WORDS
        return -1.0 if is_in_word else 0.7
    if "\u3040" <= char <= "\u30ff":
        return 1.0 if charset in _KANA else 0.1
    if "\uff61" <= char <= "\uff9f":
        return -0.3  # mostly half of a character of another charset
    if "\u3400" <= char <= "\u9fff":
        if is_rare_char(char):
            return -0.5
        return 0.2 if charset == "euc-kr" else 0.5 if is_beside_ascii else 0.95
    if "\uac00" <= char <= "\ud7a3":
        return -0.5 if is_rare_char(char) else 1.0
    if "\u0e00" <= char <= "\u0e4e":
        return -1.0 if is_beside_ascii else 0.8
    if char in _SIGNS and not (after.isalpha() or text[at - 2 : at].isalpha()):
        return 0.5
    if not char.isalpha():
        is_in_word = before.isalpha() and after.isalpha()
        return -1.0 if is_in_word or category(char)[0] == "C" else 0.0
    is_alone = not (before.isalpha() or after.isalpha())
    return _weigh_letter(before, char, usual, is_beside_ascii, is_alone)


def _weigh_letter(
    before: str, char: str, usual: str, is_beside_ascii: bool, is_alone: bool
) -> float:
    lower = char.lower()
    is_latin = char < "\u0250"
    if not is_latin and is_beside_ascii:
        return -1.0
    if is_latin and not is_beside_ascii and not is_alone:
        return -0.3
    if char != lower and before.islower():
        return -0.7
    if lower not in usual:
        return 0.1 if is_latin and lower not in _ICELANDIC else 0.3 if not is_latin else 0.6
    return 1.0 if char == lower else 0.8


def _is_ascii_letter(char: str) -> bool:
    return char.isascii() and char.isalpha()


@lru_cache(maxsize=4_096)
def is_rare_char(char: str) -> bool:
    """Return whether a Chinese character or a Korean syllable is in no list of common ones."""
    for charset in _COMMON_HAN:
        try:
            encoded = char.encode(charset)
        except UnicodeEncodeError:
            continue
        low, high = _COMMON_ROWS.get(charset, (0, 0xFF))
        if low <= encoded[0] <= high and (char >= "\uac00") == (charset == "euc_kr"):
            return False
    return True


async def convert_to_utf8(
    parts: AsyncIterable[bytes], charset_for: Callable[[bytes], Charset | None]
) -> AsyncIterator[bytes]:
    """Yield the parts of a file in UTF-8. `charset_for` names the charset by the file's first
    BEGINNING_BYTES; if it returns None or UTF-8, or the bytes are UTF-8 in any case, the parts pass
    unchanged. A charset that does not fit is replaced by one that does (`choose_charset`).

    Raises UnicodeDecodeError, and what `parts` raises.
    """
    transcoder = _Transcoder(charset_for)
    async for part in parts:
        if piece := transcoder.add(part, False):
            yield piece
    if (last := transcoder.add(b"", True)) or not transcoder.has_output:
        yield last


class _Transcoder:
    """Turns a file into UTF-8, piece by piece.

    Whether the file is UTF-8 already shows at its first bytes beyond ASCII, which may be far behind
    its beginning: the ASCII before them is returned unchanged.
    """

    def __init__(self, charset_for: Callable[[bytes], Charset | None]) -> None:
        self._charset_for = charset_for
        self._held = b""
        """Bytes that were read and not yet returned, since the charset is not decided."""
        self._charset: Charset | None = None
        self._is_begun = False
        self._is_decided = False
        self._decoder: Callable[[bytes, bool], str] | None = None
        self.has_output = False

    def add(self, part: bytes, final: bool) -> bytes:
        """Add a part; return as many bytes as can be encoded by now, in UTF-8. Raises
        UnicodeDecodeError."""
        encoded = self._encode_part(part, final)
        self.has_output = self.has_output or bool(encoded)
        return encoded

    def _encode_part(self, part: bytes, final: bool) -> bytes:
        if not self._is_decided:
            self._held += part
            if not self._is_begun:
                if len(self._held) < BEGINNING_BYTES and not final:
                    return b""
                self._begin()
            before = b""
            if not self._is_decided:
                deciding = _DECIDING_BYTE.search(self._held)
                at = deciding.start() if deciding else len(self._held)
                before, self._held = self._held[:at], self._held[at:]
                if not final and len(self._held) < BEGINNING_BYTES:
                    return before
                self._decide()
            part, self._held = self._held, b""
            return before + self._decode_part(part, final)
        return self._decode_part(part, final)

    def _begin(self) -> None:
        self._is_begun = True
        self._charset = self._charset_for(self._held)
        if self._charset in (None, UTF_8) or self._charset in META_OVERRIDES:
            self._decide()

    def _decide(self) -> None:
        self._is_decided = True
        if self._charset in (None, UTF_8):
            return
        charset = choose_charset(self._held, [self._charset])
        if charset not in (None, UTF_8):
            self._decoder = charset.decoder("strict")

    def _decode_part(self, part: bytes, final: bool) -> bytes:
        return part if self._decoder is None else self._decoder(part, final).encode()
