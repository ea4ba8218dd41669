"""Group dead letters by their cause of death.

Ten thousand letters caused by one broken server differ only in ids, times and addresses. These are
replaced by placeholders; the rest of the error, with its location in the code, is the cause. The
index and scans of `jobs.dead` use the same function.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256

FINGERPRINT_LENGTH = 10
"""Hexadecimal digits of a group's id."""
MESSAGE_LENGTH = 300
"""Characters of a normalised message that count: the end of a long one is a dump of data."""

# The order matters: a pattern comes before those that match parts of its matches.
_PLACEHOLDERS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), placeholder)
    for pattern, placeholder in (
        (r"\b[a-zA-Z][a-zA-Z0-9+.-]*://[^\s'\"<>)\]]+", "<url>"),
        (r"[\w.+-]+@[\w-]+\.[\w.-]+", "<email>"),
        (
            r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?\b",
            "<time>",
        ),
        (r"\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b", "<time>"),
        (r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "<id>"),
        (r"(?<!\w)'[^'\n]{0,500}'|\"[^\"\n]{0,500}\"|`[^`\n]{0,500}`", "<text>"),
        (r"(?<![\w<])(?:~|\.{1,2}|[A-Za-z]:)?(?:[/\\][\w.@%+=~-]+){2,}[/\\]?", "<path>"),
        (r"(?<![\w<])/[\w.@%+=~-]+", "<path>"),
        (r"\b0[xX][0-9a-fA-F]+\b", "<hex>"),
        (r"\b(?=[a-zA-Z]*\d)(?=\d*[a-zA-Z])[0-9a-fA-F]{8,}\b", "<hex>"),
        # Ids such as job-17, doc_2024a or 01HV…: letters with a number in them.
        (r"\b[A-Za-z]+(?:[-_:.][A-Za-z]+)*[-_:.]?\d[\w:.-]*\b", "<id>"),
        # A status code stays: `HTTP 503` is another cause than `HTTP 404`.
        (r"(?<!HTTP )(?<!status )(?<!code )(?<![\w.])[-+]?\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?", "<n>"),
    )
)
_FRAME = re.compile(
    # Matches within one line, so that text without a traceback takes linear time.
    r'^[ \t]*+File "(?P<file>[^"\n]+)", line \d+, in (?P<function>.+)$',
    re.MULTILINE,
)
_LIBRARY = re.compile(r"[/\\](?:site-packages|dist-packages|lib[/\\]python[\d.]+)[/\\]|^<")
"""Files of libraries: the standard library, installed packages, `<frozen …>`."""
_OWN_MACHINERY = re.compile(r"services[/\\]engine[/\\]runtime[/\\]\w+\.py$")
"""Files whose frames call every handler, and so do not distinguish causes."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Cause that all letters of a group have in common."""

    reason: str
    error_type: str
    message: str
    """The error's message with placeholders for its variable parts."""
    location: str
    """`file.py:function` of the innermost frame outside of libraries; empty where unknown."""
    job_type: str

    @property
    def fingerprint(self) -> str:
        """The group's id."""
        parts = (self.reason, self.error_type, self.message, self.location, self.job_type)
        text = "\0".join(parts).encode("utf-8", "backslashreplace")
        return sha256(text).hexdigest()[:FINGERPRINT_LENGTH]


def cause_of(
    reason: str,
    job_type: str | None,
    error_type: str | None,
    message: str | None,
    traceback: str | None,
) -> Cause:
    """Return the cause of a death. Never raises."""
    return Cause(
        reason=reason,
        error_type=error_type or "",
        message=normalise(message or ""),
        location=location_of(traceback or ""),
        job_type=job_type or "",
    )


def normalise(message: str) -> str:
    """Return a message with placeholders for numbers, ids, paths, times and quoted text, in one
    line."""
    text = message[: MESSAGE_LENGTH * 4]
    for pattern, placeholder in _PLACEHOLDERS:
        text = pattern.sub(placeholder, text)
    return " ".join(text.split())[:MESSAGE_LENGTH]


def location_of(traceback: str) -> str:
    """Return the location of the error: the innermost frame of the job's own code, without its line
    number, which each edit of the file changes."""
    frames = [(each["file"], each["function"].strip()) for each in _FRAME.finditer(traceback)]
    own = [
        frame
        for frame in frames
        if not _LIBRARY.search(frame[0]) and not _OWN_MACHINERY.search(frame[0])
    ]
    if not (own or frames):
        return ""
    file, function = (own or frames)[-1]
    # Two folders tell files of one name apart, and are the same on every host.
    short = "/".join(re.split(r"[/\\]", file)[-2:])
    return f"{short}:{function}"
