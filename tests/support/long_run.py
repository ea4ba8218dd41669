"""What the runs that somebody starts by hand have in common: a folder of logs, and an exit code."""

import asyncio
import logging
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

import structlog


def exit_with(name: str, run: Callable[[Path], Coroutine[Any, Any, bool]]) -> NoReturn:
    """Run it with a new folder for its logs, and exit: with 0 where all was as it must be."""
    directory = Path(tempfile.mkdtemp(prefix=f"switchyard-{name}-"))
    # What this process itself has to say of those that are cut off or killed, beside its lines.
    with (directory / "driver.log").open("w") as log:
        logging.basicConfig(stream=log)
        logging.captureWarnings(True)
        structlog.configure(logger_factory=structlog.WriteLoggerFactory(log))
        sys.exit(0 if asyncio.run(run(directory)) else 1)
