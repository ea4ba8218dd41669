"""Make foreign text safe for a terminal: characters that would control it are shown, not obeyed.

Payloads, titles, file names, error texts come from anybody. Printed as they are, an escape sequence
in them clears the screen, renames the window or writes into the clipboard, and a character that
turns the direction of writing makes a line read as another. All printed text passes here: on
its way to the terminal in cli/base/output.py, to the log in services/common/logs.py, to a page in
api/dashboard/formats.py.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

_STEERING = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but tab and line feed; C1 as well
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of writing
    "\u2028\u2029"  # line ends to some
    "\ud800-\udfff"  # halves of a pair: no encoding can write them
)
MAX_QUOTED = 100
"""Characters of a server's answer that an error quotes."""
_TEXT = re.compile(f"[{_STEERING}]")
_LINE = re.compile(f"[{_STEERING}\t\n]")


def printable(text: str) -> str:
    r"""Return the text with steering characters as `\x1b` or `\u202e`; its line breaks and tabs
    stay."""
    return text if text.isascii() and text.isprintable() else _TEXT.sub(_escape, text)


def printable_line(text: str) -> str:
    """Return the text in one line, without steering characters: nothing in it can look like the
    next line."""
    return text if text.isascii() and text.isprintable() else _LINE.sub(_escape, text)


def quoted_answer(answer: object) -> str:
    """Return the beginning of a server's answer, in quotes and in one line, for the error that says
    what was expected. `answer` is bytes, text, or a value of parsed JSON."""
    if isinstance(answer, bytes | bytearray):
        answer = bytes(answer[: 4 * MAX_QUOTED]).decode(errors="replace")
    text = answer if isinstance(answer, str) else _start_of_json(answer)
    line = printable_line(" ".join(text[: 4 * MAX_QUOTED].split()))
    if not line:
        return "an empty body"
    return f'"{line[:MAX_QUOTED]}…"' if len(line) > MAX_QUOTED else f'"{line}"'


def printable_json(text: str) -> str:
    r"""Return a JSON document with the same meaning, its steering characters as `\u202e`.

    JSON has them only within strings, where these escapes are allowed.
    """
    return _TEXT.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def to_json(value: Any, **options: Any) -> str:
    """Return a value as JSON; NaN and infinite numbers, which JSON can't say, become null.
    `options` are those of `json.dumps`."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, **options)


def _start_of_json(value: Any) -> str:
    """Return the beginning of a value's JSON, as much as is quoted."""
    start = ""
    for part in json.JSONEncoder(ensure_ascii=False, default=str).iterencode(value):
        start += part[: 4 * MAX_QUOTED]
        if len(start) > 4 * MAX_QUOTED:
            break
    return start


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
