"""Load what each wing adds to the engine: job types, backfill sources, duties, checks, metrics.

The engine knows no wing above it. A wing says in its module `wing.py` what it brings, in a `WING`;
other packages name such a module in the entry point group `switchyard.wings`. What it brings is
named and imported only when it is used, so that knowing the wings costs nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

from switchyard.services.common.errors import Misconfigured

WING_MODULES = (
    "switchyard.services.engine.wing",
    "switchyard.services.llm.wing",
    "switchyard.services.pipeline.wing",
)
"""The wings of this package, lowest first."""
ENTRY_POINTS = "switchyard.wings"


class InvalidWing(Misconfigured):
    """A wing can't be loaded; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Wing:
    """Declaration of one wing. The fields below `source_modules` name a function or a
    value, `module:name`; empty where the wing has none."""

    name: str
    libraries: tuple[str, ...] = ()
    """Third-party modules that the wing needs: if one is not installed, the wing is left out."""
    extra: str = ""
    """The extra of this package that brings them."""
    job_modules: tuple[str, ...] = ()
    """Modules with job types. To import them is cheap: handlers import heavy libraries when they
    run."""
    source_modules: tuple[str, ...] = ()
    """Modules with sources of backfills."""
    periodic_duties: str = ""
    """Returns the `scheduler.duties.PeriodicDuty`s of a `DutyContext`."""
    default_schedules: str = ""
    """The `schedules.entry.ScheduleEntry`s that are there without being added."""
    doctor_steps: str = ""
    """Returns `monitoring.doctor.DoctorStep`s."""
    metrics: str = ""
    """Awaited with settings and ledger; returns pairs of a `Metric` and its samples."""
    delayed_jobs: str = ""
    """Awaited with settings and ledger; returns how many jobs of each queue wait elsewhere and will
    come back to it (`monitoring.lane_pressure`)."""
    cost_estimate: str = ""
    """A `backfill.costs.CostEstimator`."""
    short_budget: str = ""
    """A `backfill.costs.BudgetCheck`."""


@cache
def known_wings() -> tuple[Wing, ...]:
    """Return all wings, lowest first, whether they can be used or not. Raises InvalidWing.

    Found once, as are those that are installed: entry points and libraries are looked for in the
    files of all that is installed, and backfills ask before each step."""
    names = list(WING_MODULES)
    names += sorted(each.value for each in entry_points(group=ENTRY_POINTS))
    return tuple(_load(name) for name in dict.fromkeys(names))


@cache
def load_wings() -> tuple[Wing, ...]:
    """Return the wings whose libraries are installed, lowest first. Raises InvalidWing."""
    return tuple(
        wing
        for wing in known_wings()
        if all(find_spec(library) is not None for library in wing.libraries)
    )


def missing_wings_hint() -> str:
    """Return how to install the wings that are left out here, to be added to an error; empty where
    there are none. Raises InvalidWing."""
    missing = [wing for wing in known_wings() if wing not in load_wings()]
    if not missing:
        return ""
    names = " and ".join(wing.name for wing in missing)
    extras = ",".join(wing.extra for wing in missing if wing.extra)
    return f"; not installed here: {names} (`pip install 'switchyard[{extras}]'`)"


def job_modules() -> tuple[str, ...]:
    """Return the modules with the job types that come along. Raises InvalidWing."""
    return tuple(module for wing in load_wings() for module in wing.job_modules)


def source_modules() -> tuple[str, ...]:
    """Return the modules with the sources of backfills that come along. Raises InvalidWing."""
    return tuple(module for wing in load_wings() for module in wing.source_modules)


def load_contributions(field: str) -> Iterator[Any]:
    """Import what the wings contribute by that field of Wing, lowest first. Raises InvalidWing."""
    for wing in load_wings():
        if reference := getattr(wing, field):
            module, _, name = reference.partition(":")
            try:
                yield getattr(importlib.import_module(module), name)
            except (ImportError, AttributeError) as error:
                raise InvalidWing(f"wing {wing.name}: {reference} can't be loaded: {error}") from (
                    error
                )


def _load(module: str) -> Wing:
    try:
        wing = importlib.import_module(module).WING
    except (ImportError, AttributeError) as error:
        raise InvalidWing(f"the wing {module!r} can't be loaded: {error}") from error
    if not isinstance(wing, Wing):
        raise InvalidWing(f"{module}.WING is no Wing")
    return wing
