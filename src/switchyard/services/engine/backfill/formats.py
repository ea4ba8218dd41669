"""How a file of items can be written, as plain values."""

from enum import StrEnum


class FileFormat(StrEnum):
    """How a file is read."""

    JSONL = "jsonl"
    """A JSON value a line; the fields of an object by their names, another value as `item`."""
    CSV = "csv"
    """The first row names the fields."""
    LINES = "lines"
    """Each line is `item`."""
