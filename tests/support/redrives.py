"""Redrives, run here to their end, or only planned."""

from __future__ import annotations

from typing import Any

from switchyard.services.bulk.runner import BulkRunner
from switchyard.services.dead.changes import Change
from switchyard.services.dead.letters import LetterFilter
from switchyard.services.redrive.handler import RedriveHandler
from switchyard.services.redrive.plan import plan_redrive
from switchyard.services.redrive.sending import Tally
from switchyard.services.redrive.spec import RedriveProgress, RedriveSpec, start_redrive
from tests.support.system import System

EVERYTHING = LetterFilter()
AS_IT_IS = Change()


async def redrive(
    system: System, which: LetterFilter = EVERYTHING, change: Change = AS_IT_IS, **options: Any
) -> RedriveProgress:
    """Send back what fits, as `jobctl dead redrive` does; what has become of it."""
    spec = RedriveSpec(which, change, remote=False, **options)
    operation = await start_redrive(system.ledger, spec, created_by="test")
    handler = RedriveHandler(system.settings, system.registry, system.ledger, lanes=system.lanes)
    return RedriveProgress.of(await BulkRunner(system.ledger, [handler]).run_one(operation.id))


async def plan(
    system: System, which: LetterFilter = EVERYTHING, change: Change = AS_IT_IS, **options: Any
) -> Tally:
    """What `jobctl dead redrive --dry-run` tells."""
    spec = RedriveSpec(which, change, remote=False, **options)
    return await plan_redrive(
        system.settings, system.registry, system.ledger, spec, lanes=system.lanes
    )
