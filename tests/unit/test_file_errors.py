"""What a person is told of a file that can't be read or written."""

from pathlib import Path

import pytest

from switchyard.cli.base.errors import CommandFailed, WrongUsage, writing
from switchyard.cli.base.payloads import read_argument
from switchyard.services.common.file_errors import describe_read_error


def test_a_payload_file_that_cannot_be_read_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin.json").write_bytes('{"name": "é"}'.encode("latin-1"))

    def refused(path: str) -> str:
        with pytest.raises(WrongUsage) as caught:
            read_argument(f"@{path}")
        return str(caught.value)

    assert refused("no.json") == (
        f"can't read 'no.json': there is no such file (looked for in '{tmp_path}')"
    )
    assert refused(f"{tmp_path}/no.json").endswith("/no.json': there is no such file")
    assert refused(".") == "can't read '.': it is a folder: name a file"
    assert "a part of its path is a file" in refused("latin.json/x")
    assert "its byte 11 is not UTF-8: save the file as UTF-8" in refused("latin.json")


def test_a_file_of_somebody_else_says_who_may_read_it() -> None:
    error = PermissionError(13, "Permission denied")
    assert "has no right to: see `ls -l`" in describe_read_error("/etc/shadow", error)
    assert describe_read_error("-", error).startswith("can't read standard input: ")


def test_a_file_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    for path, why in ((tmp_path, "it is a folder"), (tmp_path / "a" / "b", "make it first")):
        with pytest.raises(CommandFailed, match=why), writing(path):
            path.write_text("")
