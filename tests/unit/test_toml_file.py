"""TOML files that settings name: any invalid one is refused with a reason, and none is waited
for."""

import os
from pathlib import Path

import pytest

from switchyard.services.common.toml_file import MAX_BYTES, InvalidToml, read_toml


def test_a_file_of_the_largest_size_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("#" * (MAX_BYTES - 10) + "\na = 1")
    assert read_toml(path) == {"a": 1}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[shop", "is not TOML"),
        (b"a = \xff", "is not TOML"),
        (b"a = " + b"[" * 100_000, "is not TOML"),
        (b"a = 2024-13-01", "is not TOML"),
        (b"a = 1" + b"9" * 100_000, "is not TOML"),
        (b"a = 1\n" + b"#" * MAX_BYTES, "is larger than 1,048,576 bytes"),
    ],
)
def test_an_invalid_file_is_refused_by_its_name(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    with pytest.raises(InvalidToml, match=reason) as caught:
        read_toml(path)
    assert str(path) in str(caught.value)


def test_a_path_that_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    for name in ("pipe.toml", "none.toml", ""):
        with pytest.raises(InvalidToml, match="there is no file"):
            read_toml(tmp_path / name)
