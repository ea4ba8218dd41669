"""Read the header tables of incoming messages, whoever has written them.

A broker passes on whatever a publisher has sent: keys that are no text, times beyond the
calendar, thousands of nested tables. pamqp's decoder fails on these in several ways, and copies the
rest of the table for each value: a frame of 128 KiB takes it seconds. This decoder goes through the
bytes once, to a limited depth, and raises one kind of error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

MAX_DEPTH = 32
"""Levels of nested tables and lists. The broker's own headers need three."""
MILLISECONDS_FROM = 0xFFFFFFFF
"""A time above this (the year 2106) was written in milliseconds, as some clients do."""


class UnreadableTable(ValueError):
    """The bytes can't be read as a table; the text says why."""


_Read = Callable[[bytes, int, int], tuple[Any, int]]
_length = struct.Struct(">I").unpack_from


def read_table(raw: bytes, at: int, depth: int = 0) -> tuple[dict[str, Any], int]:
    """Return the table whose length field is at `at`, and where the table ends. Raises
    UnreadableTable.

    Long strings come as str, those that are no UTF-8 as bytes.
    """
    try:
        return _read_table(raw, at, depth)
    except UnreadableTable:
        raise
    except (struct.error, IndexError) as error:
        raise UnreadableTable("the headers are cut off") from error


def _read_table(raw: bytes, at: int, depth: int) -> tuple[dict[str, Any], int]:
    at, end = _read_bounds(raw, at, depth)
    table: dict[str, Any] = {}
    while at < end:
        start = at + 1
        at = start + raw[at]
        try:
            key = str(raw[start:at], "utf-8")
        except UnicodeDecodeError as error:
            raise UnreadableTable(f"a header's name is not UTF-8: {raw[start:at]!r}") from error
        table[key], at = _read_value(raw, at, depth)
    return table, _check_end(at, end)


def _read_list(raw: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    at, end = _read_bounds(raw, at, depth)
    items: list[Any] = []
    while at < end:
        item, at = _read_value(raw, at, depth)
        items.append(item)
    return items, _check_end(at, end)


def _read_value(raw: bytes, at: int, depth: int) -> tuple[Any, int]:
    read = _READERS.get(raw[at])
    if read is None:
        raise UnreadableTable(f"a header has a value of the unknown type {raw[at : at + 1]!r}")
    return read(raw, at + 1, depth + 1)


def _read_bounds(raw: bytes, at: int, depth: int) -> tuple[int, int]:
    if depth > MAX_DEPTH:
        raise UnreadableTable(f"the headers are nested more than {MAX_DEPTH} deep")
    return at + 4, at + 4 + _length(raw, at)[0]


def _check_end(at: int, end: int) -> int:
    if at != end:
        raise UnreadableTable("a header is longer than the table that it is in")
    return end


def _read_bytes(raw: bytes, at: int, _: int) -> tuple[bytes, int]:
    end = at + 4 + _length(raw, at)[0]
    if end > len(raw):
        raise UnreadableTable("the headers are cut off")
    return raw[at + 4 : end], end


def _read_text(raw: bytes, at: int, depth: int) -> tuple[str | bytes, int]:
    data, end = _read_bytes(raw, at, depth)
    try:
        return str(data, "utf-8"), end
    except UnicodeDecodeError:
        return data, end


def _read_time(raw: bytes, at: int, _: int) -> tuple[datetime, int]:
    (moment,) = _unsigned(raw, at)
    seconds = moment / 1000 if moment > MILLISECONDS_FROM else moment
    try:
        return datetime.fromtimestamp(seconds, UTC), at + 8
    except (ValueError, OverflowError, OSError) as error:
        raise UnreadableTable(f"a header has a time that no calendar has: {moment}") from error


def _read_decimal(raw: bytes, at: int, _: int) -> tuple[Decimal, int]:
    places, number = _places_and_number(raw, at)
    return Decimal(number).scaleb(-places), at + 5


def _read_nothing(raw: bytes, at: int, _: int) -> tuple[None, int]:
    return None, at


def _fixed_reader(form: str) -> _Read:
    unpack, size = struct.Struct(form).unpack_from, struct.calcsize(form)

    def read(raw: bytes, at: int, _: int) -> tuple[Any, int]:
        return unpack(raw, at)[0], at + size

    return read


_unsigned = struct.Struct(">Q").unpack_from
_places_and_number = struct.Struct(">Bi").unpack_from
_READERS: dict[int, _Read] = {
    ord(name): read
    for name, read in {
        "t": _fixed_reader(">?"),
        "b": _fixed_reader(">b"),
        "B": _fixed_reader(">B"),
        "s": _fixed_reader(">h"),
        "u": _fixed_reader(">H"),
        "I": _fixed_reader(">i"),
        "i": _fixed_reader(">I"),
        "l": _fixed_reader(">q"),
        "L": _fixed_reader(">q"),
        "f": _fixed_reader(">f"),
        "d": _fixed_reader(">d"),
        "D": _read_decimal,
        "S": _read_text,
        "x": _read_bytes,
        "T": _read_time,
        "A": _read_list,
        "F": _read_table,
        "V": _read_nothing,
        "\0": _read_nothing,
    }.items()
}
"""By the types of https://www.rabbitmq.com/amqp-0-9-1-errata.html, and what pamqp has besides."""
