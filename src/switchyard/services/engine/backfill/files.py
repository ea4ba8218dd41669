"""Read a file as a source: each line of text, row of CSV or line of JSON is an item."""

from __future__ import annotations

import asyncio
import csv
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from switchyard.broker import patterns
from switchyard.services.common.files.charset_choice import convert_to_utf8
from switchyard.services.common.files.charsets import UTF_8, Charset, bom_or_utf16_charset
from switchyard.services.common.files.errors import NotStored, StorageError
from switchyard.services.common.files.storage import Storage
from switchyard.services.engine.backfill.formats import FileFormat
from switchyard.services.engine.backfill.sources import (
    Cursor,
    InvalidBackfill,
    Item,
    Source,
    SourceFailed,
    SourceUnreachable,
    Unusable,
)

MAX_INPUT_BYTES = 10 * 1024**3
RECORDS_PER_TURN = 500
"""Records after which other tasks of the event loop get a turn."""
MAX_RECORD_BYTES = 1024 * 1024
"""Bytes of one line, or of one row of CSV with its line breaks, at most."""
PIECE_BYTES = 16 * 1024
"""Bytes of a file after which other tasks get a turn: a file of line ends takes half a second for
each megabyte."""
INPUT_PREFIX = "backfills"


def format_of(name: str) -> FileFormat:
    """Return the format for the extension of a file's name."""
    if name.endswith((".jsonl", ".ndjson")):
        return FileFormat.JSONL
    return FileFormat.CSV if name.endswith(".csv") else FileFormat.LINES


async def store_input(
    storage: Storage,
    parts: AsyncIterable[bytes],
    file_format: FileFormat,
    charset: Callable[[], Charset | None] = lambda: None,
) -> str:
    """Store a file for backfills, converted to UTF-8 by its byte order mark, or else from the
    charset that the sender declares (`charset` is called after the first part). Returns its key.

    Raises InvalidBackfill, FileTooLarge, and the errors of `parts`; then nothing is stored.
    """
    key = f"{INPUT_PREFIX}/{secrets.token_hex(8)}.{file_format}"
    text = convert_to_utf8(parts, lambda head: bom_or_utf16_charset(head) or charset())
    try:
        await storage.put_stream_async(key, text, max_bytes=MAX_INPUT_BYTES)
    except UnicodeDecodeError as error:
        raise InvalidBackfill(
            f"the file is not in the charset that it is declared to be in: {error.reason}"
        ) from error
    return key


async def read_pieces(storage: Storage, key: str, *, start: int) -> AsyncGenerator[bytes, None]:
    """Yield a file in pieces of PIECE_BYTES, from the byte `start` on. Raises StorageError."""
    async with aclosing(storage.stream_async(key, start=start)) as parts:  # type: ignore[type-var]
        async for part in parts:
            for position in range(0, len(part), PIECE_BYTES):
                yield part[position : position + PIECE_BYTES]
                await asyncio.sleep(0)


class FileOptions(BaseModel):
    """Options of the source `file`."""

    model_config = ConfigDict(extra="forbid")

    key: str = Field(pattern=patterns.INPUT_KEY)
    """Key of the file in the storage."""
    format: FileFormat
    name: str | None = None
    """Name of the file, for people."""


class FileSource(Source):
    """Items of a file in the storage. The cursor is the position in it: `byte` and `line`."""

    name: ClassVar[str] = "file"
    Options = FileOptions
    options: FileOptions

    @property
    def title(self) -> str:
        return f"file {self.options.name or self.options.key}"

    async def total(self) -> int | None:
        """Count the records that are not empty."""
        number = 0
        async for record, _ in self._records(0):
            number += bool(record.strip())
        return number - (self.options.format is FileFormat.CSV and number > 0)

    async def items(self, cursor: Cursor | None) -> AsyncIterator[Item | Unusable]:
        offset, line = (cursor["byte"], cursor["line"]) if cursor else (0, 0)
        header = await self._header() if self.options.format is FileFormat.CSV else []
        must_skip_header = bool(header) and cursor is None
        async for record, end in self._records(offset):
            line += 1
            if not record.strip():
                continue
            if must_skip_header:
                must_skip_header = False
                continue
            position = {"byte": end, "line": line}
            try:
                values = self._parse(record, header)
            except ValueError as error:
                yield Unusable(f"line {line}", str(error), position)
            else:
                yield Item(str(line), values, position)

    def _parse(self, record: bytes, header: list[str]) -> dict[str, Any]:
        """Return the values of a record. Raises ValueError with the reason if it is invalid."""
        if len(record) > MAX_RECORD_BYTES:
            hint = ": is a quote not closed?" if self.options.format is FileFormat.CSV else ""
            raise ValueError(f"longer than {MAX_RECORD_BYTES:,} bytes{hint}")
        try:
            text = UTF_8.decode(record, "strict")
        except UnicodeDecodeError as error:
            raise ValueError("not UTF-8: save the file so, or send its charset") from error
        if self.options.format is FileFormat.LINES:
            return {"item": text.strip()}
        if self.options.format is FileFormat.CSV:
            return _parse_row(text, header)
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not JSON: {error}") from error
        return value if isinstance(value, dict) else {"item": value}

    async def _header(self) -> list[str]:
        async for record, _ in self._records(0):
            if not record.strip():
                continue
            try:
                text = UTF_8.decode(record, "strict")
                names = [name.strip() for name in _split_row(text)]
            except (UnicodeDecodeError, csv.Error) as error:
                raise SourceFailed(
                    f"the first row of {self.title} can't be read: {error}"
                ) from error
            if not all(names) or len(set(names)) != len(names):
                raise SourceFailed(f"the first row of {self.title} must name each column once")
            return names
        return []

    async def _records(self, offset: int) -> AsyncIterator[tuple[bytes, int]]:
        """Yield each record with the byte offset of its end. While a quote is open, a row of CSV
        continues on the next line."""
        is_csv = self.options.format is FileFormat.CSV
        unfinished_line = bytearray()
        row = _Row()
        try:
            async for piece in read_pieces(self.context.storage, self.options.key, start=offset):
                first, *others = piece.split(b"\n")
                unfinished_line += first
                if len(unfinished_line) > 64 * MAX_RECORD_BYTES:
                    raise SourceFailed(
                        f"{self.title} has a line of {len(unfinished_line):,} bytes and more"
                    )
                if not others:
                    continue
                lines = [bytes(unfinished_line), *others]
                unfinished_line = bytearray(lines.pop())
                for number, line in enumerate(lines, 1):
                    if number % RECORDS_PER_TURN == 0:
                        await asyncio.sleep(0)
                    offset += len(line) + 1
                    if not is_csv:
                        yield line, offset
                    elif row.add(line + b"\n"):
                        yield row.take(), offset
        except NotStored as error:
            raise SourceFailed(str(error)) from error
        except (StorageError, OSError) as error:
            raise SourceUnreachable(f"the storage does not answer: {error}") from error
        if last := row.take() + unfinished_line:
            yield last, offset + len(unfinished_line)


class _Row:
    """A row of CSV, which may have line breaks between quotes."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._size = 0
        self._is_open = False

    def add(self, line: bytes) -> bool:
        """Add a line; return whether the row is complete now, or longer than MAX_RECORD_BYTES."""
        self._lines.append(line)
        self._size += len(line)
        self._is_open ^= line.count(b'"') % 2 == 1
        return not self._is_open or self._size > MAX_RECORD_BYTES

    def take(self) -> bytes:
        """Return the row, and begin another."""
        row = b"".join(self._lines)
        self._lines, self._size, self._is_open = [], 0, False
        return row


def _split_row(text: str) -> list[str]:
    csv.field_size_limit(MAX_RECORD_BYTES)
    return next(csv.reader(text.splitlines(keepends=True)), [])


def _parse_row(text: str, header: list[str]) -> dict[str, Any]:
    try:
        row = _split_row(text)
    except csv.Error as error:
        raise ValueError(f"not CSV: {error}") from error
    if len(row) != len(header):
        raise ValueError(f"{len(row)} fields, but the first row names {len(header)}")
    return dict(zip(header, row, strict=True))
