"""A time limit that ends every test: its signal is repeated, and also covers the test's teardown.

pytest-timeout's signal raises in whatever runs just then. Within an event loop that may be a
callback, in which asyncio only logs it, or the moment before a task is woken, which then waits for
good: the loop's end waits for the task, when the limit has been taken away as the test has failed.
Between two phases of a test it would end the whole run.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any

import pytest

REPEAT_INTERVAL = 30.0
"""Seconds after which a test that still runs after the signal gets another one."""
LIMIT = pytest.StashKey[Any]()
PHASE = pytest.StashKey[bool]()
"""Whether the test is being set up, called or torn down now."""


class TimeIsUp(KeyboardInterrupt):
    """The test's time is up. A KeyboardInterrupt, because asyncio does not catch it in
    callbacks."""

    def __init__(self, failure: BaseException) -> None:
        super().__init__()
        self.failure = failure


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, object, object]:
    """Repeat the signal until the timer is cancelled."""
    item.stash[LIMIT] = settings
    is_set = yield
    if settings.method == "signal":
        fail = signal.getsignal(signal.SIGALRM)
        if callable(fail):
            signal.signal(signal.SIGALRM, _ending(item, fail))
        signal.setitimer(
            signal.ITIMER_REAL, settings.timeout, min(settings.timeout, REPEAT_INTERVAL)
        )
    return is_set


def _ending(
    item: pytest.Item, fail: Callable[[int, FrameType | None], Any]
) -> Callable[[int, FrameType | None], None]:
    def end(number: int, frame: FrameType | None) -> None:
        if not item.stash.get(PHASE, False):
            return  # the next signal finds it in its next phase
        try:
            fail(number, frame)
        except pytest.fail.Exception as failure:
            raise TimeIsUp(failure) from None

    return end


def _phase(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[PHASE] = True
    try:
        return (yield)
    except TimeIsUp as error:
        raise error.failure from None
    finally:
        item.stash[PHASE] = False


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _phase(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _phase(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _phase(item))


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Give a failed test's end the same limit: pytest-timeout has just taken it away, for a
    debugger."""
    settings = node.stash.get(LIMIT, None)
    if settings is None or settings.func_only or node.config.getoption("usepdb"):
        return
    node.config.hook.pytest_timeout_set_timer(item=node, settings=settings)
