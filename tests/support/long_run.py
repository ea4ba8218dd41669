"""The folder of logs and the exit code of runs that are started by hand."""

import asyncio
import logging
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

import structlog


def exit_with(name: str, run: Callable[[Path], Coroutine[Any, Any, bool]]) -> NoReturn:
    """Run with a new folder for logs, and exit with 0 if the run returns True."""
    directory = Path(tempfile.mkdtemp(prefix=f"switchyard-{name}-"))
    # Warnings and log lines of this process, apart from the report that it prints.
    with (directory / "driver.log").open("w") as log:
        logging.basicConfig(stream=log)
        logging.captureWarnings(True)
        structlog.configure(logger_factory=structlog.WriteLoggerFactory(log))
        sys.exit(0 if asyncio.run(run(directory)) else 1)
