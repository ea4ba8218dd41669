"""Read the stack of another thread."""

from __future__ import annotations

import gc
import sys
from collections import deque
from contextlib import suppress
from itertools import accumulate, chain, repeat, starmap
from operator import methodcaller
from types import FrameType


def stack_of(thread: int) -> list[FrameType]:
    """Return the frames of a thread, the innermost first; none of a thread that has ended.

    All frames are read within one call of C, during which no other thread runs. If the thread ran
    on between two reads of `f_back`, a coroutine that yields meanwhile would leave a pointer to
    memory that is no frame any more: with Python 3.11.7 it was a dict, and the process may crash.

    Before Python 3.11.9, `sys._current_frames` holds a lock of the interpreter while it makes its
    answer. A collection of garbage that this sets off may let another thread run, and if that one
    starts a thread, both wait for each other for good (python/cpython#106883): none is made here.
    """
    innermost = map(methodcaller("get", thread), starmap(sys._current_frames, [()]))
    frames: deque[FrameType | None] = deque()
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        with suppress(AttributeError):  # beyond the outermost frame: None has no `f_back`
            frames.extend(accumulate(chain(innermost, repeat("f_back")), getattr))
    finally:
        if is_collecting:
            gc.enable()
    return [frame for frame in frames if frame is not None]
