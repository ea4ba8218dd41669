"""Buffer a handler's progress and checkpoints until they are recorded.

A handler may report ten thousand times a second and from any thread: a newer report replaces
the older one, and nothing waits for a ledger.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from switchyard.broker.wording import writable
from switchyard.services.common.errors import InvalidInput
from switchyard.services.engine.records.progress import ReportedProgress

MAX_NOTE = 200
"""Characters kept of a progress note."""
MAX_CHECKPOINT = 64 * 1024
"""Bytes of a checkpoint's JSON, at most. Larger data belongs into storage, and its key into
the checkpoint."""


class InvalidCheckpoint(InvalidInput):
    """A handler's checkpoint is too large, or not JSON: a defect of the handler."""


@dataclass(frozen=True, slots=True)
class PendingProgress:
    """Progress and checkpoint reported since the last call of `take`; None where there is nothing
    new."""

    progress: ReportedProgress | None
    checkpoint: str | None
    """The checkpoint as JSON."""


def _ignore() -> None:
    return


class ProgressBuffer:
    """Holds the last progress and the last checkpoint of one run. Safe in any thread."""

    __slots__ = ("_checkpoint", "_is_announced", "_lock", "_progress", "_wake")

    def __init__(self, wake: Callable[[], None] = _ignore) -> None:
        """`wake` is called when there is something to take, once until `take` is called; in the
        handler's thread."""
        self._wake = wake
        self._lock = threading.Lock()
        self._is_announced = False
        self._progress: tuple[float | None, str] | None = None
        self._checkpoint: str | None = None

    def stop_waking(self) -> None:
        """Stop calling `wake`: the run's writer takes the rest itself."""
        self._wake = _ignore

    def report(self, fraction: float | None, note: str = "") -> None:
        """Replace the progress. Raises TypeError or ValueError if `fraction` is not a number or
        `note` not a text."""
        # Called up to ten thousand times a second: `take` makes the record.
        if type(fraction) is not float or not 0.0 <= fraction <= 1.0:
            fraction = _clamp(fraction)
        if not isinstance(note, str):
            raise TypeError(f"a note is text, not {type(note).__name__}")
        with self._lock:
            self._progress = (fraction, note)
            if self._is_announced:
                return
            self._is_announced = True
        self._wake()

    def keep(self, data: Any) -> None:
        """Replace the checkpoint. Raises InvalidCheckpoint."""
        encoded = _encode(data)
        with self._lock:
            self._checkpoint = encoded
            is_first, self._is_announced = not self._is_announced, True
        if is_first:
            self._wake()

    def take(self) -> PendingProgress | None:
        """Remove and return the new progress and checkpoint; None where there is neither."""
        with self._lock:
            self._is_announced = False
            if self._progress is None and self._checkpoint is None:
                return None
            pending = PendingProgress(_to_progress(self._progress), self._checkpoint)
            self._progress = self._checkpoint = None
            return pending

    def put_back(self, pending: PendingProgress) -> None:
        """Put back what could not be recorded, unless newer values have come."""
        with self._lock:
            if self._progress is None and pending.progress is not None:
                self._progress = (pending.progress.fraction, pending.progress.note)
            if self._checkpoint is None:
                self._checkpoint = pending.checkpoint


def _to_progress(report: tuple[float | None, str] | None) -> ReportedProgress | None:
    return None if report is None else ReportedProgress(report[0], writable(report[1], MAX_NOTE))


def _clamp(fraction: float | None) -> float | None:
    """Return the fraction, limited to 0 to 1: a handler must not fail for a wrong count."""
    if fraction is None:
        return None
    try:
        number = float(fraction)
    except OverflowError:  # of an integer
        return 0.0 if fraction < 0 else 1.0
    return None if math.isnan(number) else min(max(number, 0.0), 1.0)


def _encode(data: Any) -> str:
    try:
        encoded = json.dumps(data, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidCheckpoint(f"a checkpoint must be JSON: {error}") from error
    if len(encoded) > MAX_CHECKPOINT:
        raise InvalidCheckpoint(
            f"a checkpoint of {len(encoded)} bytes, the limit is {MAX_CHECKPOINT}: put what is "
            "large into storage, and its key into the checkpoint"
        )
    return encoded
