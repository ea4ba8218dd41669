"""The files that settings name: whatever is wrong with one, it is said, and nothing hangs."""

import os
from pathlib import Path

import pytest

from switchyard.services.common.toml_file import MAX_BYTES, InvalidToml, read_toml


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("#" * (MAX_BYTES - 10) + "\na = 1")
    assert read_toml(path) == {"a": 1}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[shop", "is not TOML"),
        (b"a = \xff", "is not TOML"),
        (b"a = " + b"[" * 100_000, "is not TOML"),
        (b"a = 2024-13-01", "is not TOML"),
        (b"a = 1" + b"9" * 100_000, "is not TOML"),
        (b"a = 1\n" + b"#" * MAX_BYTES, "is larger than 1,048,576 bytes"),
    ],
)
def test_a_wrong_file_is_refused_by_its_name(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    with pytest.raises(InvalidToml, match=why) as caught:
        read_toml(path)
    assert str(path) in str(caught.value)


def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    for name in ("pipe.toml", "none.toml", ""):
        with pytest.raises(InvalidToml, match="there is no file"):
            read_toml(tmp_path / name)
