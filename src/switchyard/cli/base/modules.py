"""Where the modules of users are looked for."""

from __future__ import annotations

import sys
from pathlib import Path


def find_modules_here() -> None:
    """Let JOBS_MODULES and `--include` name a file in the current directory.

    At the end of the path: a file of the user's must not take the place of a library.
    """
    try:
        here = str(Path.cwd())
    except FileNotFoundError:
        return  # somebody has removed it: there is nothing to find
    if here not in sys.path:
        sys.path.append(here)
