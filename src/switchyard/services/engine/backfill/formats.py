"""Formats of files with items."""

from enum import StrEnum


class FileFormat(StrEnum):
    """Format of a file."""

    JSONL = "jsonl"
    """A JSON value a line; the fields of an object by their names, another value as `item`."""
    CSV = "csv"
    """The first row names the fields."""
    LINES = "lines"
    """Each line is `item`."""
