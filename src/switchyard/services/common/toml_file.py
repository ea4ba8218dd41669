"""Read TOML files that an operator writes and a setting names, within bounds."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from switchyard.services.common.file_errors import describe_read_error, searched_folder

MAX_BYTES = 1024 * 1024
"""Bytes of the largest file: rules, prices and schedules are far smaller."""


class InvalidToml(ValueError):
    """The file is missing, too large or no TOML; the text names it and says which."""


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file. Raises InvalidToml."""
    try:
        if not path.is_file():  # reading a pipe or a device might never end
            raise InvalidToml(f"there is no file {str(path)!r}{searched_folder(path)}")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidToml(describe_read_error(path, error)) from error
    if len(content) > MAX_BYTES:
        raise InvalidToml(f"{str(path)!r} is larger than {MAX_BYTES:,} bytes")
    try:
        return tomllib.loads(content.decode())
    # RecursionError: of brackets nested without end. ValueError: TOML, UTF-8, dates out of range.
    except (ValueError, RecursionError) as error:
        raise InvalidToml(f"{str(path)!r} is not TOML: {error}") from error
