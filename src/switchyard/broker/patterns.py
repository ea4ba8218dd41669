r"""Patterns of names, ids and keys, and what each allows in words, for error messages.

A field's `pattern=` is one of these, so that no error shows a regular expression. Parts with a
repeat count (`{0,63}`) are ASCII: pydantic compiles a repeated `\w` or `.` to a thousand states for
each repeat, megabytes in every process that knows the field. The length of a text in any characters
is bounded by the field's `max_length` instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

NAME = r"^[a-z][a-z0-9_]{0,63}$"
"""Names of lanes, worker kinds, job types and the like."""
DASHED_NAME = r"^[a-z][a-z0-9_-]{0,63}$"
"""Names of schedules and model servers."""
SHORT_NAME = r"^[a-z][a-z0-9_]{0,39}$"
"""Names of kinds of document classes, and of the classes."""
WORD = r"^[a-z_]{1,40}$"
"""Names of states and events."""
LOWER_CASE_WORD = r"^[a-z]{2,20}$"
PROBLEM_NAME = r"^[a-z-]{1,40}$"
FIELD_NAME = r"^[A-Za-z_][A-Za-z0-9_ -]{0,63}$"
CLASS = r"^[a-z][a-z0-9_]{0,39}:[a-z][a-z0-9_]{0,39}$"
ROUTING_KEY = r"^[a-z][a-z0-9_]{0,63}\.[a-z][a-z0-9_]{0,63}$"
WEBHOOK_KEY = r"^[a-z_]{1,32}\.[a-z][a-z0-9_]{0,63}$"
"""Key of a declared webhook's job: a routing key whose lane is one of our own names."""
TYPE_OR_KEY = r"^([a-z][a-z0-9_]{0,63}\.)?[a-z][a-z0-9_]{0,63}$"
JOB_ID = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
JOB_ID_OR_NONE = rf"^$|{JOB_ID}"
DOCUMENT_ID = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
CRAWL_ID = r"^[0-9a-f-]{36}$"
CRAWL_ID_START = r"^[0-9a-f-]{6,36}$"
PAUSE_ID = r"^pause-[0-9a-f]{4,32}$"
REDRIVE_ID = r"^redrive-[0-9a-f]{4,32}$"
ACTION_ID = r"^(cancel|rerun|move)-[0-9a-f]{4,32}$"
BACKFILL_ID = r"^[a-z]{1,32}-[0-9a-f]{4,32}$"
GROUP_ID = r"^[0-9a-f]{1,10}$"
CURSOR = r"^[A-Za-z0-9_=-]+$"
INPUT_KEY = r"^backfills/[A-Za-z0-9._-]+$"
"""Key of a file for a backfill, in the storage."""
INCOMING_KEY = r"^uploads/incoming/[A-Za-z0-9_-]{1,64}$"
"""Key of the only files in the storage that a job's payload may name: waiting uploads, never those
of another document."""
TAG_NAME = r"^[a-z][a-z0-9_.-]{0,39}$"
URL = r"^https?://"
PLAIN = r"^[^\x00-\x1f\x7f]*$"
"""A line of text."""
NO_NUL = r"^[^\x00]*$"
"""PostgreSQL keeps no text with a NUL."""
PRINTABLE = r"^[\x20-\x7e]*$"
NO_SPACE = r"^[\x21-\x7e]+$"
TIME_ZONE = r"^[A-Za-z0-9_+/-]{1,64}$"
LANGUAGE = r"^[a-z]{2,20}(_[a-z]{2,10})?$"
CURRENCY = r"^[A-Za-z]{1,10}$"
HEADER = r"^[A-Za-z0-9-]{1,100}$"
EMBEDDER = r"^(wordllama|hashed|minilm|/.+)$"
ENVIRONMENT_VARIABLE = r"^[A-Z][A-Z0-9_]{0,99}$"
TRACEPARENT = r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"
GITHUB_ORG = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,38}$"
HUB_AUTHOR = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,95}$"

_NAME = "lower-case letters, digits and _, beginning with a letter"

ALLOWED_IN_WORDS: Mapping[str, str] = MappingProxyType(
    {
        NAME: f"use {_NAME}, at most 64 characters",
        DASHED_NAME: "use lower-case letters, digits, _ and -, beginning with a letter, at most 64 "
        "characters",
        SHORT_NAME: f"use {_NAME}, at most 40 characters",
        WORD: "use lower-case letters and _, at most 40 characters",
        LOWER_CASE_WORD: "use 2 to 20 lower-case letters",
        PROBLEM_NAME: "use lower-case letters and -, at most 40 characters",
        FIELD_NAME: "use letters, digits, spaces, _ and -, beginning with a letter or _, at most "
        "64 characters",
        CLASS: "write kind:class, for example privacy:restricted, each of "
        f"{_NAME}, at most 40 characters",
        ROUTING_KEY: "write <lane>.<job_type>, for example hot.ingest_document",
        WEBHOOK_KEY: "write <lane>.<job_type>, for example hot.ingest_document",
        TYPE_OR_KEY: "write a job type or <lane>.<job_type>, for example "
        "maintenance.recompute_graph",
        JOB_ID: "use letters, digits, '.', '_', ':' and '-', beginning with a letter or digit, at "
        "most 128 characters",
        JOB_ID_OR_NONE: "give nothing, or the id of a job: letters, digits, '.', '_', ':' and '-', "
        "beginning with a letter or digit, at most 128 characters",
        DOCUMENT_ID: "use letters, digits, _ and -, beginning with a letter or digit, at most 64 "
        "characters",
        CRAWL_ID: "give the id of a crawl: 36 characters, as `jobctl crawl list` and GET /crawl "
        "show it",
        CRAWL_ID_START: "give the id of a crawl, or its beginning: 6 to 36 characters, as `jobctl "
        "crawl list` and GET /crawl show it",
        PAUSE_ID: "give the id of a pause, for example pause-3fa9c01b22: `jobctl pauses` and GET "
        "/pauses show it",
        REDRIVE_ID: "give the id of a redrive, for example redrive-3fa9c01b22",
        ACTION_ID: "give the id of a bulk action, for example rerun-3fa9c01b22",
        BACKFILL_ID: "give the id of an operation, for example backfill-3fa9c01b22",
        TAG_NAME: "name a tag by lower-case letters, digits, _, - and ., beginning with a letter, "
        "at most 40 characters",
        GROUP_ID: "give the id of a group, or its beginning: at most 10 of 0-9 and a-f, as "
        "`jobctl dead groups` and GET /admin/dead/groups show it",
        CURSOR: "give the `next_cursor` of the page before, unchanged",
        INPUT_KEY: "give the `key` that POST /backfills/inputs answered",
        INCOMING_KEY: "give the key of a waiting upload: uploads/incoming/ and 1 to 64 letters, "
        "digits, _ and -",
        URL: "begin with http:// or https://",
        PLAIN: "use one line, without control characters",
        NO_NUL: "use no NUL character",
        PRINTABLE: "use printable ASCII characters",
        NO_SPACE: "use printable ASCII characters without spaces, at least one",
        TIME_ZONE: "give the name of a time zone, for example Europe/Berlin or UTC",
        LANGUAGE: "give a language code of lower-case letters, for example de or ar",
        CURRENCY: "give a currency of 1 to 10 letters, for example USD",
        HEADER: "give the name of an HTTP header: letters, digits and -, at most 100 characters",
        EMBEDDER: "write wordllama, hashed or minilm, or the absolute path of a sentence model's "
        "folder",
        ENVIRONMENT_VARIABLE: "give the name of an environment variable: upper-case letters, "
        "digits and _, beginning with a letter, at most 100 characters",
        TRACEPARENT: "give a W3C trace context: 00-<32 hexadecimal digits>-<16>-<2>, lower case",
        GITHUB_ORG: "give the name of an organisation on GitHub: letters, digits, - and _, at most "
        "39 characters",
        HUB_AUTHOR: "give the name of a user or organisation of the hub: letters, digits, '_', "
        "'.' and '-', at most 96 characters",
    }
)
"""What an error tells the user to write, by pattern."""


def describe_field_error(error: Mapping[str, Any]) -> str:
    """Return the text of one of pydantic's errors for people: it tells what is allowed, not how
    that is checked, and never the offending value, which may be private."""
    message = str(error["msg"])
    if error["type"] == "extra_forbidden":
        return "there is no such field"
    if error["type"] == "string_pattern_mismatch":
        pattern = (error.get("ctx") or {}).get("pattern")
        # The pattern of a user's own job type is not among these: pydantic's message shows it.
        return ALLOWED_IN_WORDS.get(str(pattern), message)
    if error["type"] == "union_tag_not_found":
        return f"{error['ctx']['discriminator']} is missing"
    if error["type"] == "union_tag_invalid":
        return "{discriminator} is none of {expected_tags}".format(**error["ctx"])
    return message.removeprefix("Value error, ")
