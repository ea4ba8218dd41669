"""Control sequences for terminals are made visible in texts, JSON, tables and logs."""

import json
import sys

import pytest

from switchyard.cli.base.output import add_row, cell, console, echo, print_json, print_rows, table
from switchyard.services.common.printable import printable, printable_json, printable_line
from tests.support.commands import ROOT
from tests.support.terminals import STEERING, in_terminal, steering_in

LOGGING_PROGRAM = """
import logging, sys
import structlog
from switchyard.services.common.logs import configure
from tests.support.terminals import STEERING
configure("info", sys.argv[1])
log = structlog.get_logger("any")
log.info("said", message_id=STEERING, other={"a": [STEERING]}, nothing=None, number=7)
log.info(STEERING, **{STEERING: 1})
log.info("one", text="two\\n2026-01-01 [info     ] a line that nobody has written")
logging.getLogger("any").warning("a library says %s", STEERING)
try:
    raise ValueError(STEERING)
except ValueError:
    log.exception("failed", error=STEERING)
"""


def test_plain_text_stays_as_it_is() -> None:
    for text in ("", "two words", "Grüße, 世界 🙂\n\tnext line", "e\u0301 \u200d"):
        assert printable(text) == text


def test_control_sequences_are_shown_and_nothing_is_lost() -> None:
    assert printable("a\x1b[2J\x9b\x7f\r\u202eb\nc\td\ud800") == (
        "a\\x1b[2J\\x9b\\x7f\\x0d\\u202eb\nc\td\\ud800"
    )
    assert printable_line("a\nb\tc") == "a\\x0ab\\x09c"
    assert steering_in(printable(STEERING)) == []


@pytest.mark.parametrize("value", [STEERING, {STEERING: [STEERING]}, "\\\x7f", "\ud800"])
def test_printable_json_has_the_same_value(value: object) -> None:
    output = printable_json(json.dumps(value, ensure_ascii=False))
    assert steering_in(output) == []
    assert json.loads(output) == value
    output.encode()


def test_each_function_that_prints_shows_control_sequences(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = table("A", "B")
    add_row(rows, cell(STEERING), STEERING)
    console().print(rows)
    console().print(STEERING, markup=False)
    print_rows([(STEERING, STEERING)])
    echo(STEERING)
    print_json({"a": STEERING})
    output = capsys.readouterr().out
    assert steering_in(output) == []
    assert output.count("x1b]52;c;b3duZWQ=") == 6


def test_no_line_ends_in_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    rows = table("A", "A LONG HEADING", "B", right=["B"])
    add_row(rows, "a longer one", "x", "1")
    add_row(rows, "a", "", "12")
    console().print(rows)
    print_rows([("a", "a value"), ("longer", "a much longer value"), ("two lines", "one \n two")])
    assert capsys.readouterr().out.splitlines() == [
        "A             A LONG HEADING   B",
        "a longer one  x                1",
        "a                             12",
        "a          a value",
        "longer     a much longer value",
        "two lines  one",
        "            two",
    ]


@pytest.mark.parametrize("form", ["console", "json"])
def test_logs_on_a_terminal_hold_no_control_sequence(form: str) -> None:
    code, text = in_terminal(
        [sys.executable, "-c", LOGGING_PROGRAM, form], env={"PYTHONPATH": str(ROOT)}, cwd=ROOT
    )
    assert code == 0, text
    assert steering_in(text) == []
    assert "owned" in text
    assert not any(line.startswith("2026-01-01 [info") for line in text.splitlines())
