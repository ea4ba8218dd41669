"""The doctor's question about the classes: can documents be classified by the file?"""

from __future__ import annotations

import asyncio

from switchyard.services.common.settings import Settings
from switchyard.services.engine.monitoring.check import Diagnostic, Finding, failure, ok
from switchyard.services.pipeline.classes.definitions import BadClasses, definitions


async def classes(settings: Settings) -> list[Diagnostic]:
    """Nothing of the package's own file."""
    if settings.classes is None:
        return []
    try:
        defined = await asyncio.to_thread(definitions, settings.classes)
    except BadClasses as error:
        remedy = "correct the file, then `jobctl dead redrive --type classify_document`"
        return [failure("classes", Finding.CLASSES_INVALID, str(error), remedy)]
    return [ok("classes", f"{str(settings.classes)!r} defines {', '.join(defined.kinds)}")]
