"""Run a command in a terminal, and find control sequences in its output."""

import os
import pty
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

STEERING = (
    "\x1b]0;owned\x07\x1b]52;c;b3duZWQ=\x07\x1b[2J\x1b[31m\x9b2J\x9d0;owned\x9c\x7f\x08"
    "\r\u202etxt.exe\u2066\u2069\u200f\u2028end"
)
"""Control sequences: title, clipboard, clear, colour, some of them as C1; delete, backspace,
return; direction of text, line end."""
TERMINAL = {"TERM": "xterm-256color", "COLUMNS": "200"}
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_CONTROL_CHARACTER = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]"
)


def in_terminal(arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> tuple[int, str]:
    """Run a command with a terminal as its output; return its exit code and the output."""
    with terminal() as (terminal_fd, output):
        result = subprocess.run(
            arguments,
            env={**env, **TERMINAL},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=terminal_fd,
            stderr=terminal_fd,
            check=False,
        )
    return result.returncode, output()


@contextmanager
def terminal() -> Iterator[tuple[int, Callable[[], str]]]:
    """Open a terminal, and yield its descriptor, and a function that returns the output after the
    context has ended."""
    screen, terminal_fd = pty.openpty()
    output: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(screen, 65536):
                output.append(data)
        except OSError:
            pass  # the last writer has closed its side

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield terminal_fd, lambda: b"".join(output).decode().replace("\r\n", "\n")
    finally:
        os.close(terminal_fd)
        reader.join()
        os.close(screen)


def steering_in(text: str) -> list[str]:
    """Return the control characters of a text, except those of colours."""
    return _CONTROL_CHARACTER.findall(_STYLE.sub("", text))
