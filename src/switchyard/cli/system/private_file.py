"""Files that hold a password: their owner alone may read them."""

from __future__ import annotations

from pathlib import Path


def make_private(directory: Path) -> None:
    """Make a directory that only its owner may enter; one that is there stays as it is."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, in a directory that is made where it is missing.
    One that was open to others is closed to them before a word of it is written."""
    make_private(path.parent)
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(text)
