"""jq expressions, each in a process of its own.

An expression may run for ever, take all memory, and read the environment; the library holds the
interpreter's lock meanwhile. What applies it is the scheduler, which everything else waits for.
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
"""Seconds after which the process ends that is given nothing to do."""
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
        said = {"results": list(itertools.islice(iter(program.input_text(line)), 2))}
    except ValueError as error:
        said = {"error": str(error)}
    text = json.dumps(said)
    signal.setitimer(signal.ITIMER_PROF, 0)
    print(text, flush=True)
"""


class ExpressionStopped(PermanentFailure):
    """An expression took too long or too much; with another payload it would do so again."""


class JqProgram:
    """A compiled expression, for one payload after another. Used by threads in turn."""

    def __init__(self, expression: str) -> None:
        """Raises ValueError for what is no expression, MissingExtra."""
        with naming_extra():
            import jq
        jq.compile(expression)
        self._library = str(Path(jq.__file__).parent)
        self._expression = expression
        self._process: subprocess.Popen[str] | None = None
        self._end: Callable[[], object] = lambda: None
        self._turn = threading.Lock()

    def results(self, payload: Any) -> list[Any]:
        """Return what the expression makes of a payload, of more than two values the first two.
        Blocks for about APPLY_TIMEOUT at most. Raises ValueError, ExpressionStopped."""
        line = json.dumps(payload) + "\n"
        with self._turn:
            answer = self._exchange(line)
            if answer is None:  # it had just ended, with nothing to do
                answer = self._exchange(line)
        if answer is None:
            raise self._stopped_error()
        value = json.loads(answer)
        if "error" in value:
            raise ValueError(value["error"])
        results: list[Any] = value["results"]
        return results

    def _exchange(self, line: str) -> str | None:
        """Return the process's answer; None where it ended by itself. Raises ExpressionStopped."""
        process = self._running_process()
        assert process.stdin is not None
        assert process.stdout is not None
        answer = ""
        try:
            process.stdin.write(line)
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            pass  # `wait` says how it ended
        if answer.endswith("\n"):
            return answer
        if process.wait() == 0:
            return None
        raise self._stopped_error()

    def _running_process(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._end()
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
            self._end = weakref.finalize(self, _end, self._process)
        return self._process

    def _stopped_error(self) -> ExpressionStopped:
        ended = self._process.returncode if self._process is not None else None
        why = (
            f"took more than {APPLY_TIMEOUT:g} s for one payload"
            if ended == -signal.SIGPROF
            else f"took more than {MAX_MEMORY // 2**20} MiB, or broke down"
        )
        return ExpressionStopped(f"jq {self._expression!r} {why}: it was ended")


def _end(process: subprocess.Popen[str]) -> None:
    """Let a process end, and keep none of it."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.kill()
    process.wait()
