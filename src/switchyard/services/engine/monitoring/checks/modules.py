"""Which job types there are: those of the modules that can be loaded here."""

from __future__ import annotations

from collections.abc import Iterable

from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import Registry, RegistryError
from switchyard.services.engine.monitoring.check import Diagnostic, Finding, failure, ok
from switchyard.services.engine.wings import job_modules, load_wings, missing_wings_hint


def load_types(
    settings: Settings, include: Iterable[str] = ()
) -> tuple[Registry, list[Diagnostic]]:
    """Return the job types of all modules that can be loaded; which wings there are, and what is
    wrong with modules that can't be loaded."""
    loaded: list[str] = list(job_modules())
    registry = Registry.load(loaded)
    checks = [wings()]
    for name in dict.fromkeys((*settings.modules, *include)):
        try:
            registry = Registry.load([*loaded, name])
        except RegistryError as error:
            remedy = (
                f"`python -c 'import {name}'` says why; correct JOBS_MODULES, or install the "
                "module, or be in its directory"
            )
            checks.append(failure("modules", Finding.MODULE_MISSING, str(error), remedy))
        else:
            loaded.append(name)
    return registry, checks


def wings() -> Diagnostic:
    """Return which wings are installed here, and how to install the others."""
    return ok("wings", ", ".join(wing.name for wing in load_wings()) + missing_wings_hint())
