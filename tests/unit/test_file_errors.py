"""Error messages for files that can't be read or written."""

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

    def error_for(path: str) -> str:
        with pytest.raises(WrongUsage) as caught:
            read_argument(f"@{path}")
        return str(caught.value)

    assert error_for("no.json") == (
        f"can't read 'no.json': there is no such file (looked for in '{tmp_path}')"
    )
    assert error_for(f"{tmp_path}/no.json").endswith("/no.json': there is no such file")
    assert error_for(".") == "can't read '.': it is a folder: name a file"
    assert "a part of its path is a file" in error_for("latin.json/x")
    assert "its byte 11 is not UTF-8: save the file as UTF-8" in error_for("latin.json")


def test_the_error_for_a_missing_permission_says_how_to_see_it() -> None:
    error = PermissionError(13, "Permission denied")
    assert "has no right to: see `ls -l`" in describe_read_error("/etc/shadow", error)
    assert describe_read_error("-", error).startswith("can't read standard input: ")


def test_a_file_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    for path, reason in ((tmp_path, "it is a folder"), (tmp_path / "a" / "b", "make it first")):
        with pytest.raises(CommandFailed, match=reason), writing(path):
            path.write_text("")
