"""Errors of commands: what they print, mostly one line, and their exit codes.

0 done · 1 tried and failed · 2 the command line itself is wrong · 130 interrupted
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from switchyard.broker.errors import BrokerError
from switchyard.services.common import errors
from switchyard.services.common.extras import missing_extra_hint
from switchyard.services.common.file_errors import describe_write_error

FAILED, USAGE, INTERRUPTED = 1, 2, 130


class CommandFailed(Exception):
    """The command was tried and failed. The text says what is wrong and what to do."""

    keeps_lines = False
    """Whether the text has several lines, and is shown unchanged."""


class WrongUsage(CommandFailed):
    """The command line can't be right, whatever the state of broker and ledger."""


EXIT_CODES: Mapping[type[Exception], int] = {
    WrongUsage: USAGE,
    CommandFailed: FAILED,
    BrokerError: FAILED,
    # Not USAGE: whether a value is invalid or unknown may depend on broker and ledger.
    errors.InvalidInput: FAILED,
    errors.NotFoundError: FAILED,
    errors.ConflictError: FAILED,
    errors.TemporarilyUnavailable: FAILED,
    errors.Misconfigured: FAILED,
    errors.PermanentFailure: FAILED,
}
"""Exit codes by class: the first class of which an error is an instance counts. Any other error is
a bug of this program."""


def exit_code_of(error: BaseException) -> int | None:
    """Return the exit code of a command that failed with this error; None for a bug of this
    program."""
    if isinstance(error, ModuleNotFoundError) and missing_extra_hint(error):
        return FAILED
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), None)


def explain(error: BaseException) -> str:
    """Describe an error that has an exit code: one line, mostly."""
    if isinstance(error, ModuleNotFoundError) and (hint := missing_extra_hint(error)):
        return hint
    text = str(error) or type(error).__name__
    return text if getattr(error, "keeps_lines", False) else one_line(text)


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Raise CommandFailed, which says what to do, for an OSError while a file is written in this
    context."""
    try:
        yield
    except OSError as error:
        raise CommandFailed(describe_write_error(path, error)) from error


def one_line(text: str) -> str:
    """Return the text without its line breaks."""
    return " ".join(text.split())
