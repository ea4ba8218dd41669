"""Keep libraries from importing what this program does not need."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

UNUSED: Mapping[str, str] = MappingProxyType(
    {"rich": "structlog", "httpx._main": "httpx", "trio": "httpcore"}
)
"""By module, the package that works without it if it is not installed. structlog wants rich for
tracebacks that our logs do not have, httpx its own command, with click, rich and pygments: 80
modules, and as much time as the rest of either takes. httpcore looks for another kind of event loop
than ours: 80 modules, 4 MB."""
ALLOCATIONS = 20_000
"""New objects after which Python looks for garbage cycles, instead of 700."""


class _UnusedModuleFinder:
    """Makes imports of UNUSED modules fail in the package named there, and nowhere else. A finder
    of `sys.meta_path` by its method alone: `importlib.abc` would load 20 modules."""

    def find_spec(self, name: str, _path: object, _target: object = None) -> None:
        if (importer := UNUSED.get(name)) is not None and _is_importing(importer):
            raise ModuleNotFoundError(f"{importer} is not to load {name}", name=name)


def leave_out_unused() -> None:
    """Leave out UNUSED modules from now on in this process. Another call does nothing."""
    if not any(isinstance(each, _UnusedModuleFinder) for each in sys.meta_path):
        sys.meta_path.insert(0, _UnusedModuleFinder())


def start_light() -> None:
    """Leave out what libraries do at start for long-running programs: a quarter of the time to
    start of a command that makes one call."""
    # pydantic looks for plugins in the metadata of all packages; no model of ours uses one.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Imports make hardly any garbage, so collect it less often.
    gc.set_threshold(ALLOCATIONS)


@contextmanager
def without_unused() -> Iterator[None]:
    """Leave out UNUSED modules of imports in this context."""
    refused = _UnusedModuleFinder()
    sys.meta_path.insert(0, refused)
    try:
        yield
    finally:
        sys.meta_path.remove(refused)


def _is_importing(package: str) -> bool:
    """Tell whether code of that package is what imports now."""
    frame = sys._getframe()
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(("importlib.", __name__)):
            return bool(name.partition(".")[0] == package)
    return False
