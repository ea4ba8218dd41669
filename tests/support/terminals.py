"""A command in a terminal, and what of its output would have steered that."""

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
"""Title, clipboard, clear, colour; some as C1; delete, backspace, return; direction, line end."""
TERMINAL = {"TERM": "xterm-256color", "COLUMNS": "200"}
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_STEERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]"
)


def in_terminal(arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> tuple[int, str]:
    """Run it with a terminal as output and error; its exit code and all that came."""
    with terminal() as (side, came):
        done = subprocess.run(
            arguments,
            env={**env, **TERMINAL},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=side,
            stderr=side,
            check=False,
        )
    return done.returncode, came()


@contextmanager
def terminal() -> Iterator[tuple[int, Callable[[], str]]]:
    """Open a terminal, and yield its descriptor and what has been printed when the context is
    over."""
    screen, side = pty.openpty()
    came: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(screen, 65536):
                came.append(data)
        except OSError:
            pass  # the last writer has closed its side

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield side, lambda: b"".join(came).decode().replace("\r\n", "\n")
    finally:
        os.close(side)
        reader.join()
        os.close(screen)


def steering_in(text: str) -> list[str]:
    """Return what is in it beyond text and the colours of the command's own."""
    return _STEERS.findall(_STYLE.sub("", text))
