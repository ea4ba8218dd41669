"""Edit a dead letter for a redrive: apply a change, and check the copy that goes back."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from switchyard.broker.lanes import LANES, lane_named, split_routing_key
from switchyard.broker.message import JobMessage, describe, now
from switchyard.services.common.errors import InvalidInput
from switchyard.services.engine.dead.jq_program import JqProgram
from switchyard.services.engine.dead.letters import DeadLetterLike
from switchyard.services.engine.jobs.registry import (
    InvalidPayload,
    JobType,
    NewerPayload,
    Registry,
    RemoteFieldForbidden,
    UnknownJobType,
)
from switchyard.services.engine.jobs.secret_fields import (
    SecretSchema,
    exposes_secrets,
    hide_secrets,
    reveal_secrets,
)

MAX_EXPRESSION = 2_000
"""Characters of a jq expression."""


class InvalidRedrive(InvalidInput):
    """The redrive can't be done as it was asked for; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Change:
    """Change that a redrive makes to each letter. Applied in the order of the fields."""

    payload: Mapping[str, Any] | None = None
    """The whole payload, in place of the old one."""
    merge: Mapping[str, Any] | None = None
    """A JSON merge patch (RFC 7396) for the payload."""
    jq: str | None = None
    """A jq expression that makes the new payload of the old one."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Paths into the message, such as `payload.timeout` or `priority`, and their new values."""
    priority: int | None = None
    max_attempts: int | None = None
    to: str | None = None
    """Routing key to publish to instead of the original one."""

    @property
    def is_empty(self) -> bool:
        return self == Change()

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set."""
        return {name: value for name, value in asdict(self).items() if value not in (None, {})} | (
            {"payload": dict(self.payload)} if self.payload is not None else {}
        )

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Change:
        return cls(**fields)

    def check(self) -> None:
        """Raise InvalidRedrive for a change that is invalid for every letter."""
        if self.to is not None:
            try:
                split_routing_key(self.to)
            except ValueError as error:
                raise InvalidRedrive(str(error)) from error
        if self.jq is not None:
            _compile(self.jq)


def parse_assignment(text: str) -> tuple[str, Any]:
    """Parse `payload.x=1` into path and value; the value is JSON, or else plain text. Raises
    InvalidRedrive when the text has no such form or names another part of the message."""
    path, equals, raw = text.partition("=")
    head = path.split(".")[0]
    targets = ("payload", "priority", "metadata.max_attempts", "metadata.expires_at")
    if not equals or not ((head == "payload" and "." in path) or path in targets[1:]):
        raise InvalidRedrive(
            f"--set {text!r}: write PATH=VALUE with PATH payload.…, {', '.join(targets[1:])}"
        )
    try:
        return path, json.loads(raw)
    except ValueError:
        return path, raw


def make_copy(
    letter: DeadLetterLike,
    change: Change,
    registry: Registry,
    *,
    remote: bool = False,
    moment: datetime | None = None,
) -> tuple[JobMessage, str]:
    """Return the copy that goes back, and its routing key.

    With `remote`, the change comes from outside: local-only fields must stay as they were, in a job
    of the same type. `moment`: the present time by the ledger's clock; None: by this host's. A jq
    expression may block for seconds. Raises InvalidRedrive where the copy would not be a valid job,
    ExpressionStopped.
    """
    if letter.message is None:
        raise InvalidRedrive(why_no_job(letter))
    routing_key = change.to or letter.info.routing_key
    try:
        lane, job_type_name = split_routing_key(routing_key)
        lane_named(lane, LANES)
        job_type = registry.get_publishable(job_type_name)
        message = apply_change(letter.message, letter.body, change, job_type_name)
        message = restore_secrets(message, letter.message, registry)
        message = check_version(job_type, letter.message, message, remote=remote)
    except ValidationError as error:
        raise InvalidRedrive(describe(error)) from error
    except (ValueError, UnknownJobType, NewerPayload) as error:
        raise InvalidRedrive(str(error)) from error
    if lane not in job_type.lanes:
        raise InvalidRedrive(f"{job_type_name} is not worked in lane {lane}")
    moment = moment or now()
    expires_at = message.metadata.expires_at
    extra_metadata = (
        {} if change.is_empty else {"edited_from": edit_name(letter.id, letter.redrives)}
    )
    return (
        message.with_metadata(
            attempts=0,
            redrives=message.metadata.redrives + 1,
            queued_at=moment,
            not_before=None,
            sent_on=0,
            # With an expiry in the past, the job would die again at once.
            expires_at=expires_at if expires_at is None or expires_at > moment else None,
            **extra_metadata,
        ),
        routing_key,
    )


def restore_secrets(message: JobMessage, before: JobMessage, registry: Registry) -> JobMessage:
    """Return a changed copy with the secrets of the message before in place of their masks. Raises
    InvalidRedrive if a secret would be visible, as in a field or job type that does not hide it."""
    secrets = registry.secrets_of(before.job_type)
    payload = reveal_secrets(message.payload, secrets, before.payload)
    if exposes_secrets(before.payload, secrets, payload, registry.secrets_of(message.job_type)):
        raise InvalidRedrive(
            f"the change would show a secret of {before.job_type}: give {message.job_type} a field "
            "that is marked with Secret(), or a payload without it"
        )
    return (
        message if payload is message.payload else message.model_copy(update={"payload": payload})
    )


def check_version(
    job_type: JobType, before: JobMessage, message: JobMessage, *, remote: bool = False
) -> JobMessage:
    """Check the payload of a changed copy, and return the copy with the version that its payload
    fits: that of the message before, or the type's. Raises InvalidPayload, NewerPayload."""
    vouched: Mapping[str, Any] = before.payload
    if message.job_type != before.job_type:
        message, vouched = message.with_metadata(payload_version=job_type.version), {}
    version = message.metadata.payload_version
    is_changed = message.payload != before.payload
    if not is_changed and not job_type.can_read(version):
        return message  # its worker, of another release, can read it
    try:
        if remote:
            job_type.validate_remote(message.payload, vouched, version=version)
        else:
            job_type.read(message.payload, version)
    except RemoteFieldForbidden:
        raise
    except InvalidPayload:
        if not is_changed or version == job_type.version:
            raise
        if remote:
            job_type.validate_remote(message.payload, vouched)
        else:
            job_type.validate(message.payload)
        return message.with_metadata(payload_version=job_type.version)
    return message


def why_no_job(letter: DeadLetterLike) -> str:
    """Explain why a letter has no job, and what to do."""
    if letter.info.properties:
        return f"{letter.info.message}: export it, mend its publisher, publish its body anew"
    if letter.info.is_foreign:
        return letter.info.message
    return "the body is no job message: export it, mend it and publish it anew"


def edit_name(letter_id: str, redrives: int) -> str:
    """Return the value of `edited_from` in a message's metadata: the letter's id, and the number of
    its redrives."""
    return f"{letter_id}/{redrives}"


def apply_change(message: JobMessage, body: bytes, change: Change, job_type: str) -> JobMessage:
    """Apply a change to a message with that body, as a job of that type. Raises InvalidRedrive."""
    if change == Change(to=change.to):
        # Without changes, keep the decoded message, with its unknown fields.
        is_same_type = message.job_type == job_type
        return message if is_same_type else message.model_copy(update={"job_type": job_type})
    values = json.loads(body)
    values["job_type"] = job_type
    if change.payload is not None:
        values["payload"] = dict(change.payload)
    if change.merge is not None:
        values["payload"] = merge_patch(values["payload"], change.merge)
    if change.jq is not None:
        values["payload"] = _run_jq(change.jq, values["payload"])
    for path, value in change.values.items():
        _assign(values, path.split("."), value)
    if change.priority is not None:
        values["priority"] = change.priority
    if change.max_attempts is not None:
        _assign(values, ("metadata", "max_attempts"), change.max_attempts)
    return JobMessage.model_validate_json(json.dumps(values))


def merge_patch(target: Any, patch: Any) -> Any:
    """Return the target with a JSON merge patch (RFC 7396): null removes, objects are merged,
    anything else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge_patch(result.get(name), value)
    return result


@lru_cache(maxsize=1)
def _compile(expression: str) -> JqProgram:
    if len(expression) > MAX_EXPRESSION:
        raise InvalidRedrive(f"the jq expression has more than {MAX_EXPRESSION} characters")
    try:
        return JqProgram(expression)
    except ValueError as error:
        raise InvalidRedrive(f"jq {expression!r}: {' '.join(str(error).split())}") from error


def _run_jq(expression: str, payload: Any) -> dict[str, Any]:
    program = _compile(expression)
    try:
        results = program.results(payload)
    except ValueError as error:
        raise InvalidRedrive(f"jq {expression!r}: {' '.join(str(error).split())}") from error
    if len(results) != 1 or not isinstance(results[0], dict):
        raise InvalidRedrive(f"jq {expression!r} makes no payload: it must give one object")
    changed: dict[str, Any] = results[0]
    return changed


def _assign(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    target = values
    for step in path[:-1]:
        inner = target.setdefault(step, {})
        if not isinstance(inner, dict):
            raise InvalidRedrive(f"{'.'.join(path)}: {step} is not an object")
        target = inner
    target[path[-1]] = value


def payload_difference(before: Any, after: Any, secrets: SecretSchema | None) -> list[str]:
    """Return the difference between two payloads without their secrets. `secrets` is the schema of
    a payload with secrets; `after` may have masks in their place."""
    after_with_secrets = reveal_secrets(after, secrets, before)
    return difference(
        hide_secrets(before, secrets), hide_secrets(after_with_secrets, secrets, before)
    )


def difference(before: Any, after: Any) -> list[str]:
    """Return the lines of a unified diff between two JSON values; none if they are equal."""
    lines_before, lines_after = (
        json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False).splitlines()
        for value in (before, after)
    )
    return list(
        difflib.unified_diff(lines_before, lines_after, "dead letter", "edited", lineterm="")
    )
