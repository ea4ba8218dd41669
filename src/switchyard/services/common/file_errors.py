"""Explain to the user who named a file why it can't be read or written, and what to do."""

from __future__ import annotations

from pathlib import Path

STANDARD_INPUT = "-"


def describe_read_error(path: str | Path, error: OSError | UnicodeDecodeError) -> str:
    """Say in a line why a file can't be read, and what to do."""
    name = "standard input" if str(path) == STANDARD_INPUT else repr(str(path))
    return f"can't read {name}: {_read_error(Path(path), error)}"


def describe_write_error(path: str | Path, error: OSError) -> str:
    """Say in a line why a file can't be written, and what to do."""
    return f"can't write {str(path)!r}: {_write_error(Path(path), error)}"


def _read_error(path: Path, error: OSError | UnicodeDecodeError) -> str:
    match error:
        case FileNotFoundError():
            return f"there is no such file{searched_folder(path)}"
        case PermissionError():
            return "this user has no right to: see `ls -l`, or run it as the file's owner"
        case UnicodeDecodeError():
            return f"its byte {error.start + 1:,} is not UTF-8: save the file as UTF-8"
        case _:
            return _common_error(error)


def _write_error(path: Path, error: OSError) -> str:
    match error:
        case FileNotFoundError():
            return f"there is no folder {str(path.parent)!r}: make it first{searched_folder(path)}"
        case FileExistsError():
            return "there is a file of that name already: choose another name"
        case PermissionError():
            return "this user has no right to: choose another folder, or run it as its owner"
        case _:
            return _common_error(error)


def _common_error(error: OSError) -> str:
    """Explain an error that reading and writing have in common."""
    match error:
        case IsADirectoryError():
            return "it is a folder: name a file"
        case NotADirectoryError():
            return "a part of its path is a file, not a folder: check the path"
        case _:
            return error.strerror or str(error)


def searched_folder(path: Path) -> str:
    """Return the folder in which a relative path was looked for: often not the one that was
    meant."""
    return "" if path.is_absolute() else f" (looked for in {str(Path.cwd())!r})"
