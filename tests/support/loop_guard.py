"""What holds an event loop for too long: found in every test, with the place that does it.

While a loop runs one callback, it does nothing else: no heartbeat is sent and no hot job starts. So
each callback's processor time is measured, in the tests' own process and in those that they start
(commands.py). Time on the wall would measure how busy the machine is.

A callback counts where the innermost `async def` on its stack that is no library's is one of the
product. What a test or its job handlers do in a loop is theirs.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import runpy
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

GUARD, TESTS = __file__, str(Path(__file__).parents[1])  # `main` gives this module another name
PRODUCT = str(Path(__file__).parents[2] / "src" / "switchyard")
stack_of: Callable[[int], list[FrameType]] = runpy.run_path(
    f"{PRODUCT}/services/common/thread_stack.py"
)["stack_of"]
"""That of the product, without loading its packages: not every process needs them."""
STARTS = (
    f"{PRODUCT}/cli/",
    f"{PRODUCT}/api/app.py",
    f"{PRODUCT}/api/server.py",
    f"{PRODUCT}/services/engine/testing/",
)
"""Code in whose task a process begins, when nothing else is in its loop yet, or which is a command
or a user's test that has its loop for itself."""
LOOP = "_run_once"
"""What calls callbacks, in asyncio's loop."""
REPORTS = "SWITCHYARD_LOOP_REPORTS"
"""Environment variable: the file to which processes write what has held their loop."""
MAX_BLOCK = 0.1
"""Seconds of processor time, at the speed of a processor that nobody else uses."""
MAX_LOADING_BLOCK = 0.25
"""The same in a callback that loads modules in the tests' own process: which test is the first to
need them is chance, and users' processes load them in other places."""
IMPORTS = "<frozen importlib"
"""Beginning of the file name of code that loads modules."""
SAMPLE_INTERVAL = 0.02
"""Seconds between looks at what a loop does."""
REFERENCE_LOOPS, REFERENCE_SECONDS = 200_000, 0.008
"""A piece of work, and the processor time that it takes on a machine that does nothing else."""


@dataclass
class _Callback:
    """What a loop runs at two looks or more."""

    run: object
    """Stands for this run of it."""
    began: float
    """Processor seconds of its thread at the first look."""
    collected: float = 0.0
    """Of these, what Python's collector took: that looks at what all tests have made."""
    samples: int = 0
    product_samples: int = 0
    loads_modules: bool = False
    stack: str = ""
    """The latest sample that is the product's."""

    @property
    def is_mostly_product(self) -> bool:
        """Whether most of its time is the product's: a test's callback may end in the product."""
        return self.product_samples * 2 > self.samples


@dataclass
class LoopGuard:
    """Measure every callback of every loop in this process; call `report` with what took longer.

    The time counts from the first look, so that a callback that is over before costs nothing."""

    report: Callable[[str], None]
    max_loading_block: float = MAX_BLOCK
    """Seconds that a callback may take in which modules are loaded."""
    _running: dict[int, object] = field(default_factory=dict)
    """By thread, what stands for the callback that runs."""
    _seen: dict[int, _Callback] = field(default_factory=dict)
    """By thread, the callback that was looked at last."""
    _collecting: dict[int, float] = field(default_factory=dict)

    def install(self) -> None:
        """Guard this process's event loops from now on, until it ends."""
        original = asyncio.Handle._run
        running, seen = self._running, self._seen

        def run(handle: asyncio.Handle) -> None:
            thread = threading.get_ident()
            this_run = running[thread] = object()
            try:
                original(handle)
            finally:
                running.pop(thread, None)
                if thread in seen and (callback := seen.pop(thread)).run is this_run:
                    self._end(callback)

        asyncio.Handle._run = run  # type: ignore[assignment,method-assign]
        gc.callbacks.append(self._on_collection)
        self._sample_on()
        os.register_at_fork(after_in_child=self._sample_on)  # a fork has no threads

    def _end(self, callback: _Callback) -> None:
        if callback.is_mostly_product:
            used = time.thread_time() - callback.began - callback.collected
            bound = self.max_loading_block if callback.loads_modules else MAX_BLOCK
            if used > bound:
                self._judge(used, callback.stack, bound)

    def _sample_on(self) -> None:
        threading.Thread(target=self._sample, name="loop guard", daemon=True).start()

    def _sample(self) -> None:
        while True:
            time.sleep(SAMPLE_INTERVAL)
            for thread, this_run in list(self._running.items()):
                try:
                    now = time.clock_gettime(time.pthread_getcpuclockid(thread))
                except OSError:  # it has ended
                    continue
                callback = self._seen.get(thread)
                if callback is None or callback.run is not this_run:
                    self._seen[thread] = _Callback(this_run, now)
                    continue
                if now - callback.began <= MAX_BLOCK / 2:
                    continue
                stack = stack_of(thread)
                callback.samples += 1
                if any(each.f_code.co_filename.startswith(IMPORTS) for each in stack):
                    callback.loads_modules = True
                if is_product(stack):
                    callback.product_samples += 1
                    callback.stack = _shown(stack)

    def _judge(self, used: float, stack: str, bound: float) -> None:
        """Report it unless the machine is so busy that anything takes as much longer."""
        if used > bound * slowness():
            self.report(f"{used:.3f} s of processor time in one callback of the loop, at:\n{stack}")

    def _on_collection(self, phase: str, _: dict[str, int]) -> None:
        thread = threading.get_ident()
        if (callback := self._seen.get(thread)) is None:
            return
        if phase == "start":
            self._collecting[thread] = time.thread_time()
        else:
            callback.collected += time.thread_time() - self._collecting.pop(thread, callback.began)


def slowness() -> float:
    """Return how many times longer a piece of work takes now than on a machine that does nothing
    else; at least 1. Processes that share a core's caches cost each other processor time, too."""
    before = time.thread_time()
    for _ in range(REFERENCE_LOOPS):
        pass
    return max(1.0, (time.thread_time() - before) / REFERENCE_SECONDS)


def is_product(frames: Sequence[FrameType]) -> bool:
    """Return whether the innermost `async def` on the stack that is no library's is the product's;
    where there is none, as in a callback, whether it begins with the product.

    A stack that does not reach a loop says nothing."""
    stack = list(_callback_of(frames))
    if not stack or stack.pop().f_code.co_name != LOOP:
        return False
    last: FrameType | None = None
    for number, each in enumerate(stack):
        if not each.f_code.co_filename.startswith((PRODUCT, TESTS)):
            continue
        last = each
        if each.f_code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            begins = any(outer.f_code.co_filename.startswith(STARTS) for outer in stack[number:])
            return each.f_code.co_filename.startswith(PRODUCT) and not begins
    return last is not None and last.f_code.co_filename.startswith(PRODUCT)


def _shown(stack: Sequence[FrameType]) -> str:
    """Return the product's part of a stack, and where it has come to."""
    frames = traceback.StackSummary.extract((each, each.f_lineno) for each in reversed(stack))
    ours = [each for each in frames[:-3] if each.filename.startswith(PRODUCT)]
    return "".join(traceback.format_list([*ours[-8:], *frames[-3:]]))


def _callback_of(stack: Sequence[FrameType]) -> Iterator[FrameType]:
    """Return the frames of a callback outwards, and that of the loop which has called it: beyond
    that is what has begun the process, a command of `jobctl` in any case."""
    for frame in stack:
        if frame.f_code.co_filename != GUARD:
            yield frame
        if frame.f_code.co_name == LOOP:
            return


def guard_process(environment: dict[str, str]) -> None:
    """Guard the loops of a process that a test has started, where it asked for that."""
    if (path := environment.get(REPORTS)) is None:
        return

    def report(text: str) -> None:
        with Path(path).open("a") as reports:
            reports.write(f"{' '.join(sys.argv)}: {text}\n")

    LoopGuard(report).install()
    try:
        import uvloop
    except ImportError:
        return
    vars(uvloop)["run"] = _run_in_asyncio  # uvloop's callbacks can't be measured


def _run_in_asyncio(work: Coroutine[None, None, object]) -> object:
    from switchyard.cli.base.stopping import run

    return run(work)


def main() -> None:
    """Run `jobctl` guarded, in a new interpreter: nothing is loaded yet."""
    program = sys.modules["__main__"]
    program.__spec__, program.__file__ = None, str(Path(sys.executable).parent / "jobctl")
    sys.argv[0] = "jobctl"
    guard_process(dict(os.environ))
    from switchyard.cli.main import main as jobctl

    jobctl()


if __name__ == "__main__":
    main()
