"""A disk of its own, which a test may fill. Mounting one needs root."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.missing import skip_or_fail

SIZE_MIB = 64


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The directory that it is mounted at: 64 MiB, empty."""
    with mounted(tmp_path / "disk") as place:
        yield place


@contextmanager
def mounted(place: Path) -> Iterator[Path]:
    """Mount a disk of 64 MiB at a directory that this makes."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", str(place)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        skip_or_fail("a small disk can be mounted by root alone")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> Path:
    """Fill the disk; return the file to remove to have room again."""
    large = place / "large"
    try:
        with large.open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 65536)
    except OSError:
        return large
