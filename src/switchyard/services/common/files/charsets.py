"""Decode bytes from outside as browsers do: the one place where charsets are understood.

The labels and what they mean are those of the WHATWG Encoding Standard (by `webencodings`):
`iso-8859-1` is windows-1252, `gb2312` is gbk. A byte order mark comes before any label, and so does
what the bytes show by themselves: labels are often wrong.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from unicodedata import category

from switchyard.services.common.extras import naming_extra

HEAD_BYTES = 65_536
"""Bytes of a page that are searched for its `meta`. Browsers search the first 1,024, then more."""
BEGINNING_BYTES = 4096
"""Bytes of a file that show whether it is text."""
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16le"),
    (codecs.BOM_UTF16_BE, "utf-16be"),
)
_PARAMETER = re.compile(r"charset\s*=\s*[\"']?\s*([^\s\"';,>]{1,40})", re.IGNORECASE)
_XML = re.compile(
    rb"\s*<\?xml\b[^>]{0,200}?\bencoding\s*=\s*[\"']([\w.:-]{1,40})[\"']", re.IGNORECASE
)
_COMMENT = re.compile(rb"<!--.*?(?:-->|\Z)", re.DOTALL)
_META = re.compile(rb"<meta[\s/]([^>]{1,2000})>|<body\b", re.IGNORECASE)
_ATTRIBUTE = re.compile(
    r"([^\s=\"'/]{1,40})\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>]+))", re.IGNORECASE
)
_UTF8_SEQUENCE = re.compile(
    rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}"
)
"""A UTF-8 sequence of two to four bytes; other charsets produce one only by chance."""
_NON_ASCII_BYTE = re.compile(rb"[\x80-\xff]")
_MIN_EVIDENCE = 2
"""Continuation bytes needed to overrule a declared multi-byte charset, in which a two-byte sequence
may be one character as well."""
_MAX_STRAY_RATIO = 0.05
"""Most non-ASCII bytes outside UTF-8 sequences, per sequence; a text cut in pieces has some."""
_MIN_NUL_SHARE = 0.4
"""Minimum share of NUL bytes for ASCII-only text to count as UTF-16 (true UTF-16 has one half)."""
_EVIDENT_BYTES = 262_144
"""Bytes, from the first one beyond ASCII, by which a text is judged to be UTF-8 or not."""
_MULTI_BYTE = frozenset({"gbk", "gb18030", "big5", "euc-jp", "iso-2022-jp", "shift_jis", "euc-kr"})
"""Charsets with more than one byte a character, other than Unicode's own."""
_CODECS = {
    "gbk": "gb18030",
    "big5": "big5hkscs",
    "iso-2022-jp": "iso2022_jp_ext",
    "shift_jis": "cp932",
    "euc-kr": "cp949",
}
"""Python's codecs for the charsets that browsers mean by these names."""
_CODEC_CORRECTIONS = {
    "koi8-u": {0xAE: "\u045e", 0xBE: "\u040e"},
    "windows-1255": {0xCA: "\u05ba"},
}
"""Characters that Python's codecs lack or have at another byte, by byte."""


@dataclass(frozen=True, slots=True)
class Charset:
    """An encoding, by its name in the standard."""

    name: str

    def decode(self, data: bytes, errors: str = "replace") -> str:
        """Decode all the bytes, without a byte order mark; `errors`: `replace` or `strict`.
        Raises UnicodeDecodeError."""
        return self.decoder(errors)(data, True)

    def decoder(self, errors: str = "replace") -> Callable[[bytes, bool], str]:
        """Return a function that decodes one piece after the other; with the last, True. Raises as
        `decode` does."""
        if self.name in ("utf-8", "utf-16le", "utf-16be"):
            return _without_mark(codecs.getincrementaldecoder(self.name)(errors).decode)
        if self.name in _MULTI_BYTE:
            codec = codecs.getincrementaldecoder(_CODECS.get(self.name, self.name))
            return codec(f"browsers.{errors}").decode
        if self.name == "replacement":
            return lambda data, final: _decode_unreadable(data, errors) if final else ""
        if self.name == "x-user-defined":
            encoding = _encoding_of(self.name)
            decode_piece: Callable[[bytes, bool], str] = encoding.codec_info.incrementaldecoder(
                errors
            ).decode
            return decode_piece
        table = _char_table(self.name)
        return lambda data, _final: codecs.charmap_decode(data, errors, table)[0]


_UNUSUAL = frozenset(("Cc", "Cn", "Co", "Cs"))
"""Categories of characters that no text has."""
UTF_8 = Charset("utf-8")
_UTF_16 = frozenset((Charset("utf-16le"), Charset("utf-16be")))
_X_USER_DEFINED = Charset("x-user-defined")
WINDOWS_1252 = Charset("windows-1252")
"""What browsers assume for text of no known charset."""
META_OVERRIDES = {
    Charset("utf-16le"): UTF_8,
    Charset("utf-16be"): UTF_8,
    _X_USER_DEFINED: WINDOWS_1252,
}
"""By encoding: the one that is used where a `meta` names it. A `meta` that was readable as ASCII
can't be in the encoding that it names here."""


def charset_named(label: str | None) -> Charset | None:
    """Return the encoding that browsers use for a label; None for an unknown label."""
    if label and label.strip().lower() in ("utf-8", "utf8"):
        return UTF_8  # known without the extra `documents`, too, which has the table of labels
    encoding = _encoding_of(label) if label and label.isascii() else None
    return None if encoding is None else Charset(encoding.name)


def charset_of(content_type: str | None) -> Charset | None:
    """Return the encoding that a Content-Type names; None if it names none that browsers know."""
    match = _PARAMETER.search(content_type or "")
    return charset_named(match[1]) if match else None


def bom_or_utf16_charset(data: bytes) -> Charset | None:
    """Return the encoding that a byte order mark shows, or UTF-16 without one, by the first
    BEGINNING_BYTES."""
    charset = next((Charset(name) for mark, name in _BOMS if data.startswith(mark)), None)
    return charset or _unmarked_utf16(data[:BEGINNING_BYTES])


def _unmarked_utf16(head: bytes) -> Charset | None:
    """Return the byte order of a text in UTF-16 without a mark; None if it is in another charset.
    In UTF-16, each ASCII character has a NUL, all on the same side, and no character is unusual."""
    head = head[: len(head) // 2 * 2]
    low, high = head[::2].count(0), head[1::2].count(0)
    if (low == 0) == (high == 0):
        return None
    if head.isascii() and low + high < _MIN_NUL_SHARE * len(head):
        return None  # all bytes are ASCII and few are NUL: no UTF-16, but a file with some NULs
    charset = Charset("utf-16le" if high else "utf-16be")
    try:
        text = charset.decoder("strict")(head, False)
    except UnicodeDecodeError:
        return None
    usual = all(char in "\t\n\r\x0c" or category(char) not in _UNUSUAL for char in text)
    return charset if usual else None


def detected_charset(data: bytes, declared: Charset | None) -> Charset | None:
    """Return the encoding that the bytes show by themselves, whatever they are declared to be in:
    UTF-16, or UTF-8 with characters beyond ASCII. None where they leave it open."""
    return bom_or_utf16_charset(data) or (UTF_8 if _is_utf8(data, declared) else None)


def _is_utf8(data: bytes, declared: Charset | None) -> bool:
    first = _NON_ASCII_BYTE.search(data)
    if first is None:
        # ASCII alone. It is not in UTF-16, if that was declared, where it has no NULs.
        return declared in _UTF_16 and b"\0" not in data
    piece = data[first.start() : first.start() + _EVIDENT_BYTES]
    lengths = [len(each) for each in _UTF8_SEQUENCE.findall(piece)]
    strays = len(_NON_ASCII_BYTE.findall(piece)) - sum(lengths)
    strays -= _cut_bytes(piece)
    is_doubtful = declared is not None and declared.name in _MULTI_BYTE
    least = _MIN_EVIDENCE if is_doubtful else 1
    return sum(lengths) - len(lengths) >= least and strays <= _MAX_STRAY_RATIO * len(lengths)


def _cut_bytes(piece: bytes) -> int:
    """Return how many bytes at the end of the piece are of a character that is cut off."""
    for count in (1, 2, 3):
        if piece[-count] >= 0xC2:
            length = 2 if piece[-count] < 0xE0 else 3 if piece[-count] < 0xF0 else 4
            return count if count < length else 0
        if not 0x80 <= piece[-count] < 0xC0 or count == len(piece):
            return 0
    return 0


def charset_in(data: bytes) -> Charset | None:
    """Return the encoding that a page or an XML file declares itself: in its XML declaration or
    `meta`."""
    head = data[:HEAD_BYTES]
    declared = _XML.match(head)
    labels = [declared[1].decode("ascii")] if declared else []
    for label in (*labels, *_meta_labels(_COMMENT.sub(b"", head))):
        charset = charset_named(label)
        if charset is not None:
            return META_OVERRIDES.get(charset, charset)
    return None


def decode(data: bytes, declared: Charset | None = None) -> str:
    """Decode bytes in the charset that they show, else as `declared`, else as UTF-8. What does
    not fit is replaced by U+FFFD."""
    return (detected_charset(data, declared) or declared or UTF_8).decode(data)


def _meta_labels(head: bytes) -> Iterator[str]:
    for meta in _META.finditer(head):
        if meta[1] is None:
            return
        attributes: dict[str, str] = {}
        for name, *values in _ATTRIBUTE.findall(meta[1].decode("latin-1")):
            attributes.setdefault(name.lower(), next(filter(None, values), ""))
        if "charset" in attributes:
            yield attributes["charset"]
        elif attributes.get("http-equiv", "").strip().lower() == "content-type":
            match = _PARAMETER.search(attributes.get("content", ""))
            if match:
                yield match[1]


def _without_mark(decode_piece: Callable[[bytes, bool], str]) -> Callable[[bytes, bool], str]:
    has_begun = False

    def decoded(data: bytes, final: bool) -> str:
        nonlocal has_begun
        text = decode_piece(data, final)
        if text and not has_begun:
            has_begun = True
            return text.removeprefix("\ufeff")
        return text

    return decoded


def _encoding_of(label: str) -> Any:
    """Return what a label means, or None. Raises ExtraNotInstalled."""
    with naming_extra():
        import webencodings
    return webencodings.lookup(label)


def _decode_unreadable(data: bytes, errors: str) -> str:
    """Decode a text in a charset that browsers refuse to read: to one U+FFFD."""
    if errors == "strict":
        reason = "browsers do not read it: send UTF-8"
        raise UnicodeDecodeError("replacement", data, 0, len(data), reason)
    return "\ufffd"


@lru_cache(maxsize=64)
def _char_table(name: str) -> str:
    """Return the characters of a single-byte encoding. Bytes without a character become controls,
    as the standard has it; U+FFFE stands for none."""
    encoding = _encoding_of(name)
    decode_bytes = encoding.codec_info.decode
    chars = [decode_bytes(bytes([byte]), "replace")[0] for byte in range(256)]
    for byte, char in enumerate(chars):
        if char == "\ufffd":
            chars[byte] = chr(byte) if 0x80 <= byte < 0xA0 else "\ufffe"
    for byte, char in _CODEC_CORRECTIONS.get(name, {}).items():
        chars[byte] = char
    return "".join(chars)


def _replace_missing(error: UnicodeError) -> tuple[str, int] | None:
    """Return what browsers read where Python's multi-byte codecs have no character."""
    if not isinstance(error, UnicodeDecodeError):
        return None
    pair = error.object[error.start : error.start + 2]
    if error.encoding == "gb18030" and pair[:1] == b"\x80":
        return "€", error.start + 1
    if error.encoding in ("euc_jp", "iso2022_jp_ext") and len(pair) == 2:
        row, cell = pair[0] & 0x7F, pair[1] & 0x7F
        if 0x21 <= row <= 0x7E and 0x21 <= cell <= 0x7E:  # JIS X 0208 with NEC's and IBM's rows
            lead = (row - 0x21) // 2
            trail = cell + 0x7E if row % 2 == 0 else cell + 0x1F + (cell >= 0x60)
            shifted = bytes([lead + (0x81 if lead < 0x1F else 0xC1), trail])
            char = shifted.decode("cp932", "ignore")
            if char:
                return char, error.start + 2
    return None


def _mend_or_replace(error: UnicodeError) -> tuple[str | bytes, int]:
    return _replace_missing(error) or codecs.replace_errors(error)


def _mend_or_raise(error: UnicodeError) -> tuple[str | bytes, int]:
    return _replace_missing(error) or codecs.strict_errors(error)


codecs.register_error("browsers.replace", _mend_or_replace)
codecs.register_error("browsers.strict", _mend_or_raise)
