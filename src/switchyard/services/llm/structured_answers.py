"""Parse answers that must fit a JSON Schema, and check the schemas. Both come from outside.

`job_answers` asks the model once more if its answer does not fit.

Schemas are bounded in size and in what they cost to compile, refer to nothing outside of them, and
their patterns are run by an engine whose time is linear in the text. Recursive schemas may still
need time and memory that double with each level of the answer: they are checked in a process that
is killed at its limits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from switchyard.services.common.errors import PermanentError
from switchyard.services.engine.jobs.context import InProcess, ProcessCrashed
from switchyard.services.llm.schema_complexity import count_schema_parts, refuse_costly

MAX_INLINE_COST = 1_000_000
"""Characters of an answer times parts of its schema, up to which it takes at most a tenth of a
second to find out whether the answer fits."""
MAX_INLINE_ERROR_COST = 5_000
"""Characters of an answer times parts of its schema, up to which it takes at most a tenth of a
second to say what is wrong with the answer: the validator's messages for nested choices are
long."""
CHECK_TIMEOUT = 5.0
CHECK_MEMORY_MB = 1024
MAX_PATTERN_BYTES = 256 * 1024
"""Maximum size of a compiled pattern."""
_FENCE = re.compile(r"\A\s*```[a-zA-Z]*[ \t]*\n(.*?)\n?```\s*\Z", re.DOTALL)
"""The fence of Markdown that models often put around JSON."""


class UncheckableAnswer(PermanentError):
    """Checking the answer against its schema would take too long, or too much memory."""


def check_schema(schema: Mapping[str, Any]) -> None:
    """Check a JSON Schema from outside. Raises ValueError for one that is invalid, refers to
    another schema, or is too large."""
    refuse_costly(schema)
    _validator(schema)


async def parse_answer(text: str, schema: Mapping[str, Any], in_process: InProcess) -> Any:
    """Parse an answer as `parse_answer_here` does, but with a long check in a process of its own:
    by `in_process`, a job's `JobContext.in_process`. Raises ValueError, UncheckableAnswer."""
    parts = count_schema_parts(schema)
    # None: the schema is recursive or too deep, so that its cost is not known beforehand.
    cost = None if parts is None else parts * len(text)
    if cost is not None and cost <= MAX_INLINE_COST:
        value = _parse_json(text)
        if _validator(schema).is_valid(value):
            return value
    if cost is not None and cost <= MAX_INLINE_ERROR_COST:
        return parse_answer_here(text, schema)
    try:
        value, problem = await in_process(
            _value_or_problem,
            text,
            schema,
            timeout=CHECK_TIMEOUT,
            memory_limit_mb=CHECK_MEMORY_MB,
        )
    except (TimeoutError, MemoryError, ProcessCrashed) as error:
        # Out of memory, the validator's library aborts the process.
        raise UncheckableAnswer(
            f"whether the answer fits its schema can't be told within {CHECK_TIMEOUT:.0f} s and "
            f"{CHECK_MEMORY_MB} MiB: make the schema simpler"
        ) from error
    if problem is not None:
        raise ValueError(problem)
    return value


def _value_or_problem(text: str, schema: Mapping[str, Any]) -> tuple[Any, str | None]:
    # Not as an exception, whose text would have the other process' traceback.
    try:
        return parse_answer_here(text, schema), None
    except ValueError as error:
        return None, str(error)


def parse_answer_here(text: str, schema: Mapping[str, Any]) -> Any:
    """Return the value of a model's answer. Raises ValueError, which says what is wrong with the
    answer in words for the model. For schemas from outside, use `parse_answer`."""
    value = _parse_json(text)
    validator = _validator(schema)
    if validator.is_valid(value):
        return value
    problems = []
    for each in validator.iter_errors(value):
        path = "/".join(map(str, each.instance_path))
        problems.append(f"{path or 'the whole'}: {each.message[:200]}")
        if len(problems) == 5:
            break
    raise ValueError("it does not fit the schema: " + "; ".join(problems))


def _parse_json(text: str) -> Any:
    fence = _FENCE.match(text)
    try:
        return json.loads(fence[1] if fence else text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {str(error)[:200]}") from error


def _validator(schema: Mapping[str, Any]) -> Any:
    import jsonschema_rs

    try:
        return jsonschema_rs.Draft202012Validator(
            dict(schema),
            offline=True,  # nobody's schema makes this host fetch an address
            pattern_options=jsonschema_rs.RegexOptions(size_limit=MAX_PATTERN_BYTES),
        )
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is no JSON Schema: {' '.join(str(error).split())[:300]}") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
