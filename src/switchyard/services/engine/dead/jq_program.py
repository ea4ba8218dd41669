"""Run jq expressions, each in a process of its own.

An expression may run for ever, use all memory, and read the environment. The library holds the
interpreter's lock meanwhile, which would block the scheduler.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from switchyard.services.common.errors import PermanentFailure
from switchyard.services.common.extras import naming_extra

APPLY_TIMEOUT = 2.0
"""Seconds of processor time for one payload."""
MAX_MEMORY = 512 * 1024 * 1024
"""Bytes of address space."""
IDLE_TIMEOUT = 10.0
"""Seconds without work after which the process ends."""
_CHILD = """
import itertools, json, resource, select, signal, sys
where, expression, seconds, memory, idle = sys.argv[1:]
sys.path.insert(0, where)
import jq
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
signal.setitimer(signal.ITIMER_PROF, float(seconds))
program = jq.compile(expression)
signal.setitimer(signal.ITIMER_PROF, 0)
while select.select([sys.stdin], [], [], float(idle))[0]:
    line = sys.stdin.readline()
    if not line:
        break
    signal.setitimer(signal.ITIMER_PROF, float(seconds))
    try:
        answer = {"results": list(itertools.islice(iter(program.input_text(line)), 2))}
    except ValueError as error:
        answer = {"error": str(error)}
    text = json.dumps(answer)
    signal.setitimer(signal.ITIMER_PROF, 0)
    print(text, flush=True)
"""


class ExpressionStopped(PermanentFailure):
    """An expression took too much time or memory, as it would with other payloads."""


class JqProgram:
    """A compiled expression, applied to one payload after another. Thread-safe."""

    def __init__(self, expression: str) -> None:
        """Compile the expression. Raises ValueError for an invalid one, ExtraNotInstalled."""
        with naming_extra():
            import jq
        jq.compile(expression)
        self._library = str(Path(jq.__file__).parent)
        self._expression = expression
        self._process: subprocess.Popen[str] | None = None
        self._end_process: Callable[[], object] = lambda: None
        self._lock = threading.Lock()

    def results(self, payload: Any) -> list[Any]:
        """Return the expression's results for a payload, the first two at most. Blocks for about
        APPLY_TIMEOUT at most. Raises ValueError, ExpressionStopped."""
        line = json.dumps(payload) + "\n"
        with self._lock:
            answer = self._send_line(line)
            if answer is None:  # the process had just ended after IDLE_TIMEOUT
                answer = self._send_line(line)
        if answer is None:
            raise self._stopped_error()
        value = json.loads(answer)
        if "error" in value:
            raise ValueError(value["error"])
        results: list[Any] = value["results"]
        return results

    def _send_line(self, line: str) -> str | None:
        """Send a line to the process, and return its answer; None where the process had ended after
        IDLE_TIMEOUT. Raises ExpressionStopped."""
        process = self._ensure_process()
        assert process.stdin is not None
        assert process.stdout is not None
        answer = ""
        try:
            process.stdin.write(line)
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            pass  # `wait` returns how it ended
        if answer.endswith("\n"):
            return answer
        if process.wait() == 0:
            return None
        raise self._stopped_error()

    def _ensure_process(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._end_process()
            options = (APPLY_TIMEOUT, MAX_MEMORY, IDLE_TIMEOUT)
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CHILD, self._library, self._expression, *map(str, options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd=os.sep,
                env={},
            )
            self._end_process = weakref.finalize(self, _end_process, self._process)
        return self._process

    def _stopped_error(self) -> ExpressionStopped:
        exit_code = self._process.returncode if self._process is not None else None
        reason = (
            f"took more than {APPLY_TIMEOUT:g} s for one payload"
            if exit_code == -signal.SIGPROF
            else f"took more than {MAX_MEMORY // 2**20} MiB, or crashed"
        )
        return ExpressionStopped(f"jq {self._expression!r} {reason}: it was ended")


def _end_process(process: subprocess.Popen[str]) -> None:
    """End a process, and free its resources."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.kill()
    process.wait()
