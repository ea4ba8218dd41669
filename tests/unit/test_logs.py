"""To log never fails, wherever the lines go."""

import io
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from switchyard.services.common.logs import REPEAT_INTERVAL, LogStream, Repeats

LOGS = """
import logging, os, sys
import structlog
from switchyard.services.common.logs import configure
if len(sys.argv) > 1:  # a reader that has gone
    reading, writing = os.pipe()
    os.close(reading)
    os.dup2(writing, 2)
configure("info", "json")
for number in range(1_000):
    structlog.get_logger("any").info("said", number=number)
    logging.getLogger("any").warning("said, too")
try:
    raise ValueError("a bug")
except ValueError:
    structlog.get_logger("any").exception("said at last")
print("still here")
"""


def test_a_full_disk_costs_lines_and_nothing_else() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", LOGS], stdout=subprocess.PIPE, stderr=full, check=False
        )
    assert done.stdout == b"still here\n"


def test_so_does_a_reader_that_has_gone() -> None:
    done = subprocess.run([sys.executable, "-c", LOGS, "gone"], stdout=subprocess.PIPE, check=False)
    assert done.stdout == b"still here\n"


def test_the_same_warning_is_one_line_in_some_seconds_and_tells_how_often_it_came() -> None:
    now = 100.0
    repeats = Repeats(lambda: now)

    def said(level: str = "warning", **fields: str) -> dict[str, object] | None:
        try:
            return dict(
                repeats(None, level, {"event": "ledger unreachable", "level": level, **fields})
            )
        except structlog.DropEvent:
            return None

    assert said(error="a") == {"event": "ledger unreachable", "level": "warning", "error": "a"}
    assert [said(error="a"), said(error="a")] == [None, None]
    assert said(error="b") is not None
    assert [said("info"), said("info")].count(None) == 0
    assert [said(exc_info="True"), said(exc_info="True")].count(None) == 0
    now += REPEAT_INTERVAL
    told = said(error="a")
    assert told is not None
    assert told["times"] == 3
    assert said(error="a") is None
    now += REPEAT_INTERVAL
    assert said(error="c") is not None


def test_lines_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("switchyard.services.common.logs.MAX_REMEMBERED", 3)
    repeats = Repeats(lambda: 1.0)
    for number in range(10):
        assert repeats(None, "warning", {"event": str(number), "level": "warning"})
    assert len(repeats._last_logged) <= 3


def test_what_was_lost_is_told_once_there_is_room() -> None:
    class Disk(io.StringIO):
        is_full = False

        def write(self, text: str) -> int:
            if self.is_full:
                raise OSError(28, "No space left on device")
            return super().write(text)

    disk = Disk()
    stream = LogStream(disk)
    handler = logging.StreamHandler(stream)
    record = logging.makeLogRecord({"msg": "a line"})
    handler.emit(record)
    disk.is_full = True
    handler.emit(record)
    print("a line in two writes", file=stream, flush=True)
    assert stream.lost == 2
    disk.is_full = False
    handler.emit(record)
    assert disk.getvalue().splitlines() == [
        "a line",
        "a line",
        '{"event": "log lines were lost", "level": "error", "count": 2}',
    ]
    disk.close()
    handler.emit(record)
