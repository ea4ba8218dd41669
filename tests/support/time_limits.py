"""A test's time limit that holds: signalled again where it came to nothing, and for the test's end.

pytest-timeout's signal raises in whatever runs just then. Within an event loop that may be a
callback, in which asyncio only logs it, or the moment before a task is woken, which then waits for
good: the loop's end waits for the task, when the limit has been taken away as the test has failed.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from typing import Any

import pytest

AGAIN = 30.0
"""Seconds after which a test, or its end, that has outlived the signal gets another one."""
LIMIT = pytest.StashKey[Any]()


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, object, object]:
    """Repeat the signal until the timer is cancelled."""
    item.stash[LIMIT] = settings
    is_set = yield
    if settings.method == "signal":
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, min(settings.timeout, AGAIN))
    return is_set


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Give a failed test's end the same limit: pytest-timeout has just taken it away, for a
    debugger."""
    settings = node.stash.get(LIMIT, None)
    if settings is None or settings.func_only or node.config.getoption("usepdb"):
        return
    node.config.hook.pytest_timeout_set_timer(item=node, settings=settings)
