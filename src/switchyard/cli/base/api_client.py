"""Call the HTTP API from commands: open a client, and explain its errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from switchyard.cli.base.errors import CommandFailed, WrongUsage
from switchyard.cli.base.output import say
from switchyard.services.common.file_errors import describe_read_error

if TYPE_CHECKING:
    from switchyard.api.client import ApiError, Client

SHORT_PAUSE = 1.0
"""Longest pause, in seconds, before a repeated call that is not announced."""


@contextmanager
def api_client(*, retries: int = 2) -> Iterator[Client]:
    """Open a client of the API at JOBS_API_URL, which repeats a call up to `retries` times, and
    says so. Its errors, and those of files, become CommandFailed."""
    from switchyard.api.client import ApiError, Client

    try:
        # It reads JOBS_API_URL and JOBS_API_KEY alone: the other settings are the service's.
        client = Client(retries=retries, on_retry=_say_retry)
    except ValueError as error:
        raise WrongUsage(f"{error}: see JOBS_API_URL and JOBS_API_KEY") from error
    try:
        with client:
            yield client
    except UnicodeEncodeError as error:
        if error.encoding != "utf-8":
            raise  # what is printed, not what was typed
        raise WrongUsage("an argument is not UTF-8") from error
    except ApiError as error:
        raise CommandFailed(advice(error)) from error
    except OSError as error:
        if error.filename is None:
            raise
        raise CommandFailed(describe_read_error(error.filename, error)) from error


def advice(error: ApiError) -> str:
    """Return the error's text, and what the user can do."""
    from switchyard.api.client import ApiUnavailable, Unauthorized

    if isinstance(error, ApiUnavailable):
        return f"{error}; `jobctl api` serves it, and JOBS_API_URL says where"
    if isinstance(error, Unauthorized):
        return f"{error}; jobctl sends the one in JOBS_API_KEY; `jobctl keys create NAME` makes one"
    return str(error)


def _say_retry(error: ApiError, pause: float) -> None:
    if pause > SHORT_PAUSE:
        say(f"trying again in {pause:.0f} s: {error}")
