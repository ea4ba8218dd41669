"""Formats of files with items."""

from enum import StrEnum


class FileFormat(StrEnum):
    """Format of a file."""

    JSONL = "jsonl"
    """A JSON value on each line. An object has its fields as values; any other value is `item`."""
    CSV = "csv"
    """The first row names the fields."""
    LINES = "lines"
    """Each line is the value `item`."""
