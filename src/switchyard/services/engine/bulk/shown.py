"""Prepare a bulk operation's record for people: its templates and changes, without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.jobs.secret_fields import HIDDEN
from switchyard.services.engine.records.bulk import BulkOperation

_PAYLOADS = ("payload", "then_payload", "merge")
"""Parts of a payload, or all of one."""
_OF_MESSAGE = "payload"
"""First part of a path into a message's payload."""


def shown_operation(registry: Registry, operation: BulkOperation) -> BulkOperation:
    """Return the operation with the secrets of its specification hidden, whichever of the types
    that the registry knows they belong to: the jobs of one operation may be of many."""
    spec = _shown_parts(registry, operation.spec)
    if isinstance(change := spec.get("change"), Mapping):
        spec["change"] = _shown_parts(registry, change)
    if isinstance(chosen := spec.get("filter"), Mapping) and "payload" in chosen:
        path, _, value = str(chosen["payload"]).partition("=")
        shown = _shown_at(registry, path, value)
        spec["filter"] = {**chosen, "payload": f"{path}={shown}"}
        if shown != value:
            title = operation.title.replace(f"{path}={value}", f"{path}={shown}")
            operation = replace(operation, title=title)
    return replace(operation, spec=spec)


def _shown_parts(registry: Registry, spec: Mapping[str, Any]) -> dict[str, Any]:
    parts = {
        name: registry.hide_secrets_in_part(value) if name in _PAYLOADS else value
        for name, value in spec.items()
    }
    if isinstance(values := parts.get("values"), Mapping):
        parts["values"] = {
            path: _shown_at(registry, path.removeprefix(f"{_OF_MESSAGE}."), value)
            for path, value in values.items()
        }
    return parts


def _shown_at(registry: Registry, path: str, value: Any) -> Any:
    """Return a value as it is shown at a path of a payload."""
    keys = path.split(".")
    for in_list in (True, False):  # a number in a path may be a place or a name
        part = value
        for key in reversed(keys):
            part = [part] if in_list and key.isdecimal() else {key: part}
        part = registry.hide_secrets_in_part(part)
        for key in keys:
            if part == HIDDEN:
                return HIDDEN
            part = part[0] if isinstance(part, list) else part[key]
        if part != value:
            return part
    return value
