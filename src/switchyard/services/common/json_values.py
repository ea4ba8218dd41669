"""Read parsed JSON whose form nobody has checked: values of another type count as empty."""

from __future__ import annotations

from typing import Any


def dict_in(value: Any) -> dict[str, Any]:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def list_in(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []
