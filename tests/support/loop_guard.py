"""Find code that blocks an event loop for too long, in every test, and report its place.

While a loop runs one callback, it does nothing else: no heartbeat is sent and no hot job starts. So
each callback's processor time is measured, in the tests' own process and in those that they start
(commands.py). Wall time would measure how busy the machine is.

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
EXEMPT_STARTS = (
    f"{PRODUCT}/cli/",
    f"{PRODUCT}/api/app.py",
    f"{PRODUCT}/api/server.py",
    f"{PRODUCT}/services/engine/testing/",
)
"""Code whose tasks may block: at the start of a process its loop runs nothing else, and a command
or a user's test has its loop for itself."""
LOOP_FUNCTION = "_run_once"
"""Name of the function that calls callbacks in asyncio's loop."""
REPORTS = "SWITCHYARD_LOOP_REPORTS"
"""Environment variable: path of the file to which processes report blocked loops."""
MAX_BLOCK = 0.1
"""Seconds of processor time that a callback may take on an idle machine."""
MAX_LOADING_BLOCK = 0.25
"""The same for a callback that loads modules in the tests' own process: it is chance which test is
the first to need them, and users' processes load them elsewhere."""
IMPORTS = "<frozen importlib"
"""Beginning of the file name of code that loads modules."""
SAMPLE_INTERVAL = 0.02
"""Seconds between samples of a loop's stack."""
REFERENCE_LOOPS, REFERENCE_SECONDS = 200_000, 0.008
"""Iterations of an empty loop, and the processor seconds that they take on an idle machine."""


@dataclass
class _Callback:
    """A callback that was running at two samples or more."""

    run: object
    """An object that identifies this run of the callback."""
    began: float
    """Processor seconds of its thread at the first sample."""
    collected: float = 0.0
    """Processor seconds of Python's garbage collector, which visits the objects of all tests."""
    samples: int = 0
    product_samples: int = 0
    loads_modules: bool = False
    stack: str = ""
    """The latest sample within the product."""

    @property
    def is_mostly_product(self) -> bool:
        """Whether most samples are the product's: a test's callback may end in the product."""
        return self.product_samples * 2 > self.samples


@dataclass
class LoopGuard:
    """Measure every callback of every loop in this process; call `report` with what took longer.

    The time counts from the first sample, so shorter callbacks cost nothing."""

    report: Callable[[str], None]
    max_loading_block: float = MAX_BLOCK
    """Seconds that a callback may take in which modules are loaded."""
    _running: dict[int, object] = field(default_factory=dict)
    """By thread, the object that identifies its running callback."""
    _sampled: dict[int, _Callback] = field(default_factory=dict)
    """By thread, the callback that was sampled last."""
    _collecting: dict[int, float] = field(default_factory=dict)

    def install(self) -> None:
        """Guard this process's event loops from now on, until it ends."""
        original = asyncio.Handle._run
        running, sampled = self._running, self._sampled

        def run(handle: asyncio.Handle) -> None:
            thread = threading.get_ident()
            this_run = running[thread] = object()
            try:
                original(handle)
            finally:
                running.pop(thread, None)
                if thread in sampled and (callback := sampled.pop(thread)).run is this_run:
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
                callback = self._sampled.get(thread)
                if callback is None or callback.run is not this_run:
                    self._sampled[thread] = _Callback(this_run, now)
                    continue
                if now - callback.began <= MAX_BLOCK / 2:
                    continue
                stack = stack_of(thread)
                callback.samples += 1
                if any(each.f_code.co_filename.startswith(IMPORTS) for each in stack):
                    callback.loads_modules = True
                if is_product(stack):
                    callback.product_samples += 1
                    callback.stack = _format_stack(stack)

    def _judge(self, used: float, stack: str, bound: float) -> None:
        """Report a callback, unless the machine is so slow now that any code takes as much
        longer."""
        if used > bound * slowness():
            self.report(f"{used:.3f} s of processor time in one callback of the loop, at:\n{stack}")

    def _on_collection(self, phase: str, _: dict[str, int]) -> None:
        thread = threading.get_ident()
        if (callback := self._sampled.get(thread)) is None:
            return
        if phase == "start":
            self._collecting[thread] = time.thread_time()
        else:
            callback.collected += time.thread_time() - self._collecting.pop(thread, callback.began)


def slowness() -> float:
    """Return how many times longer a loop takes now than on an idle machine; at least 1. Processes
    that share a core's caches cost each other processor time, too."""
    before = time.thread_time()
    for _ in range(REFERENCE_LOOPS):
        pass
    return max(1.0, (time.thread_time() - before) / REFERENCE_SECONDS)


def is_product(frames: Sequence[FrameType]) -> bool:
    """Return whether the innermost `async def` on the stack that is no library's is the product's;
    where there is none, as in a callback, whether it begins with the product.

    A stack that does not reach a loop says nothing."""
    stack = list(_callback_of(frames))
    if not stack or stack.pop().f_code.co_name != LOOP_FUNCTION:
        return False
    outermost: FrameType | None = None
    for number, each in enumerate(stack):
        if not each.f_code.co_filename.startswith((PRODUCT, TESTS)):
            continue
        outermost = each
        if each.f_code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            begins = any(
                outer.f_code.co_filename.startswith(EXEMPT_STARTS) for outer in stack[number:]
            )
            return each.f_code.co_filename.startswith(PRODUCT) and not begins
    return outermost is not None and outermost.f_code.co_filename.startswith(PRODUCT)


def _format_stack(stack: Sequence[FrameType]) -> str:
    """Return the product's last frames of a stack, and the innermost frames."""
    frames = traceback.StackSummary.extract((each, each.f_lineno) for each in reversed(stack))
    ours = [each for each in frames[:-3] if each.filename.startswith(PRODUCT)]
    return "".join(traceback.format_list([*ours[-8:], *frames[-3:]]))


def _callback_of(stack: Sequence[FrameType]) -> Iterator[FrameType]:
    """Yield the frames of a callback outwards, up to that of the loop that called it."""
    for frame in stack:
        if frame.f_code.co_filename != GUARD:
            yield frame
        if frame.f_code.co_name == LOOP_FUNCTION:
            return


def guard_process(environment: dict[str, str]) -> None:
    """Guard the loops of a process that a test has started, if its environment has REPORTS."""
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
