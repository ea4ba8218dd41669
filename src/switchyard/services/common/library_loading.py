"""Load large libraries without blocking the event loop that first needs them.

The job types are imported without them, so that `jobctl` starts quickly and a worker takes only the
memory that its jobs need. But the first use is in an event loop, and LanceDB takes three seconds of
processor time to load (the SDK of OpenAI one second): long enough for a worker to miss its
heartbeats on a busy host, so that another takes its jobs over.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from importlib import import_module


async def load(*modules: str, by: Callable[[], object] | None = None) -> None:
    """Import these modules in a thread, unless they are loaded; with `by`, call that to import
    them.

    Call it in every `async def` before the first use of a library that takes more than 50 ms.
    """
    if all(map(is_loaded, modules)):
        return

    def import_all() -> None:
        if by is not None:
            by()
        for name in modules:
            import_module(name)

    await asyncio.to_thread(import_all)


def is_loaded(module: str) -> bool:
    """Return whether importing a module returns at once. It does not while another thread imports
    the module."""
    library = sys.modules.get(module)
    return library is not None and not getattr(library.__spec__, "_initializing", False)
