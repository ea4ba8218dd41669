"""`jobctl samples generate` writes files, and with `--truth` their true content beside them."""

from __future__ import annotations

import json
from pathlib import Path

from switchyard.cli.main import run


def test_samples_are_written_with_the_truth_beside_them(tmp_path: Path, capsys):
    out = tmp_path / "new" / "folder"
    arguments = ["samples", "generate", "2", "--kind", "tables", "--language", "fr"]
    assert run([*arguments, "--out", str(out), "--truth"]) == 0
    paths = [Path(line) for line in capsys.readouterr().out.split("\n") if line]
    assert [path.suffix for path in paths] == [".pdf", ".pdf"]
    truth = json.loads(paths[0].with_suffix(".json").read_text())
    assert truth["filename"] == paths[0].name
    assert any(block["kind"] == "table" and block["rows"] for block in truth["blocks"])


def test_an_unknown_kind_writes_nothing(tmp_path: Path, capsys):
    out = tmp_path / "new"
    assert run(["samples", "generate", "--kind", "poem", "--out", str(out)]) != 0
    assert "there is no kind 'poem'" in capsys.readouterr().err
    assert not out.exists()


def test_a_read_only_directory_is_reported_in_one_line(tmp_path: Path, capsys):
    file = tmp_path / "file"
    file.touch()
    assert run(["samples", "generate", "1", "--kind", "letter", "--out", str(file)]) == 1
    assert capsys.readouterr().err == (
        f"jobctl: can't write {str(file)!r}: there is a file of that name already: choose another "
        "name\n"
    )
