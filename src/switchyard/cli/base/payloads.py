"""Read the payloads of `jobctl publish`: from the command line, a file, or standard input."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from switchyard.cli.base.errors import WrongUsage
from switchyard.services.common.file_errors import describe_read_error

READ_BYTES = 1 << 20
POLL_SECONDS = 0.2
"""Seconds that a read waits for input, so that Ctrl-C works while there is none."""


@dataclass(frozen=True, slots=True)
class InputLine:
    """One line of JSON Lines."""

    number: int
    """Number of the line, from 1; empty lines count."""
    payload: dict[str, Any] | None
    error: str = ""
    """Why there is no payload."""


def parse_payload(text: str, where: str) -> dict[str, Any]:
    """Parse a payload, which is a JSON object. Raises WrongUsage, saying `where`."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise WrongUsage(f"{where} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise WrongUsage(
            f'{where} must be a JSON object, like {{"x": 1}}, not {_name_json_type(value)}'
        )
    return value


def read_argument(text: str) -> dict[str, Any]:
    """Read the payload of `--payload JSON` or `--payload @FILE`. Raises WrongUsage."""
    if not text.startswith("@"):
        return parse_payload(text, "--payload")
    try:
        content = Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUsage(describe_read_error(text[1:], error)) from error
    return parse_payload(content, text[1:])


class StandardInput:
    """Reads lines of standard input in batches, as they come, without waiting for a slow writer."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = sys.stdin.fileno() if descriptor is None else descriptor
        self._buffer = b""
        self._number = 0
        self.at_end = False

    def read(self, limit: int) -> list[tuple[int, str]]:
        """Return at most `limit` lines with their numbers; none when no line came for a moment.

        Blocks for a fraction of a second: call it in a thread. `at_end` is set when all was read.
        """
        lines = self._take_lines(limit)
        while not self.at_end and len(lines) < limit:
            if not select.select([self._descriptor], [], [], POLL_SECONDS)[0]:
                break
            read = os.read(self._descriptor, READ_BYTES)
            self._buffer += read
            if not read and self._buffer and not self._buffer.endswith(b"\n"):
                self._buffer += b"\n"
            lines += self._take_lines(limit - len(lines))
            self.at_end = not read and not self._buffer
        return lines

    def read_all(self) -> str:
        """Return everything that is left, as one text. Blocks until the end."""
        parts = [self._buffer]
        while read := os.read(self._descriptor, READ_BYTES):
            parts.append(read)
        self._buffer, self.at_end = b"", True
        return b"".join(parts).decode("utf-8", "replace")

    def _take_lines(self, limit: int) -> list[tuple[int, str]]:
        lines: list[tuple[int, str]] = []
        while len(lines) < limit:
            line, newline, rest = self._buffer.partition(b"\n")
            if not newline:
                break
            self._buffer = rest
            self._number += 1
            lines.append((self._number, line.decode("utf-8", "replace")))
        return lines


def parse_lines(lines: list[tuple[int, str]]) -> Iterator[InputLine]:
    """Parse lines as payloads; empty lines are skipped."""
    for number, text in lines:
        if not text.strip():
            continue
        try:
            yield InputLine(number, parse_payload(text, "it"))
        except WrongUsage as error:
            yield InputLine(number, None, str(error))


def parse_whole_document(read_lines: list[tuple[int, str]], rest: str) -> dict[str, Any] | None:
    """Return the payload when the input is one JSON object written over several lines; None when it
    is JSON Lines whose first line is damaged. Raises WrongUsage when it is neither.

    `read_lines` are the lines that were read so far, with their numbers; `rest` is all after them.
    """
    text = "\n".join([line for _, line in read_lines] + [rest])
    try:
        return parse_payload(text, "standard input")
    except WrongUsage:
        if any(line.payload is not None for line in parse_lines(_number_lines(text))):
            return None
        raise


def _number_lines(text: str) -> list[tuple[int, str]]:
    return list(enumerate(text.split("\n"), start=1))


def renumber_lines(read_lines: list[tuple[int, str]], rest: str) -> list[tuple[int, str]]:
    """Return the lines read so far and those of the rest, with numbers."""
    return _number_lines("\n".join([line for _, line in read_lines] + [rest]))


def _name_json_type(value: object) -> str:
    names = {list: "an array", str: "a string", type(None): "null", bool: "a boolean"}
    return names.get(type(value), "a number")
