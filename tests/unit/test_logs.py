"""To log never fails, wherever the lines go."""

import io
import logging
import subprocess
import sys
from pathlib import Path

from switchyard.services.logs import LogStream

LOGS = """
import logging, os, sys
import structlog
from switchyard.services.logs import configure
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
    assert stream.lost > 0
    disk.is_full = False
    handler.emit(record)
    assert disk.getvalue().splitlines() == [
        "a line",
        "a line",
        '{"event": "log lines were lost", "level": "error"}',
    ]
    disk.close()
    handler.emit(record)
