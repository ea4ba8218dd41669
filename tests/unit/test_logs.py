"""Logging never fails: not on a full disk, a closed pipe or repeated warnings."""

import io
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from switchyard.services.common.logs import REPEAT_INTERVAL, LogStream, Repeats

LOGGING_PROGRAM = """
import logging, os, sys
import structlog
from switchyard.services.common.logs import configure
if len(sys.argv) > 1:  # standard error is a pipe without a reader
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
        result = subprocess.run(
            [sys.executable, "-c", LOGGING_PROGRAM],
            stdout=subprocess.PIPE,
            stderr=full,
            check=False,
        )
    assert result.stdout == b"still here\n"


def test_a_closed_pipe_costs_lines_and_nothing_else() -> None:
    result = subprocess.run(
        [sys.executable, "-c", LOGGING_PROGRAM, "gone"], stdout=subprocess.PIPE, check=False
    )
    assert result.stdout == b"still here\n"


def test_a_repeated_warning_is_logged_once_an_interval_with_its_number() -> None:
    now = 100.0
    repeats = Repeats(lambda: now)

    def log(level: str = "warning", **fields: str) -> dict[str, object] | None:
        try:
            return dict(
                repeats(None, level, {"event": "ledger unreachable", "level": level, **fields})
            )
        except structlog.DropEvent:
            return None

    assert log(error="a") == {"event": "ledger unreachable", "level": "warning", "error": "a"}
    assert [log(error="a"), log(error="a")] == [None, None]
    assert log(error="b") is not None
    assert [log("info"), log("info")].count(None) == 0
    assert [log(exc_info="True"), log(exc_info="True")].count(None) == 0
    now += REPEAT_INTERVAL
    repeated = log(error="a")
    assert repeated is not None
    assert repeated["times"] == 3
    assert log(error="a") is None
    now += REPEAT_INTERVAL
    assert log(error="c") is not None


def test_a_limited_number_of_lines_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("switchyard.services.common.logs.MAX_REMEMBERED", 3)
    repeats = Repeats(lambda: 1.0)
    for number in range(10):
        assert repeats(None, "warning", {"event": str(number), "level": "warning"})
    assert len(repeats._last_logged) <= 3


def test_the_number_of_lost_lines_is_logged_once_there_is_room() -> None:
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
