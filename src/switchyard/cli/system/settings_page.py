"""docs/settings.md, made from the settings: `python -m switchyard.cli.system.settings_page`."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

from switchyard.cli.base.output import echo
from switchyard.services.common.durations import DAY

HEAD = """# Settings

All settings are environment variables. An empty variable is an unset one. With an invalid value,
or with two that contradict each other, every command stops with a line that names the variables.
`jobctl up` writes the settings of its system into `.switchyard/env`, for
`source`. Changes take effect when a process is restarted.

This page is made from the code: `python -m switchyard.cli.system.settings_page > docs/settings.md`.
"""
TABLE = """
## {title}

| variable | default | range | description |
| --- | --- | --- | --- |
"""
BOUNDS = {"ge": "≥ ", "gt": "> ", "le": "≤ ", "lt": "< "}


def page() -> str:
    """Return the page's text: a table for each subject, in the order of the settings' classes."""
    from switchyard.services.common.settings import Settings

    parts = [HEAD]
    for subject in reversed(Settings.__bases__):
        parts.append(TABLE.format(title=(subject.__doc__ or "").split("\n")[0].rstrip(".")))
        parts += [
            f"| `JOBS_{name.upper()}` | {_default(name, info)} | {_range(info)} | "
            f"{_cell(info.description or '')} |\n"
            for name, info in Settings.model_fields.items()
            if name in subject.__annotations__
        ]
    return "".join(parts)


def _range(info: Any) -> str:
    """Return the values that a field accepts, as far as the field itself says it."""
    choices = _choices(info.annotation)
    if choices:
        return ", ".join(f"`{each}`" for each in choices)
    bounds = {
        key: f"{value:,}"
        for each in info.metadata
        for key in BOUNDS
        if (value := getattr(each, key, None)) is not None
    }
    if set(bounds) == {"ge", "le"}:
        return f"{bounds['ge']} to {bounds['le']}"
    return ", ".join(f"{BOUNDS[key]}{value}" for key, value in bounds.items())


def _choices(annotation: Any) -> list[str]:
    if annotation is bool:
        return ["true", "false"]
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [each for part in get_args(annotation) for each in _choices(part)]


def _default(name: str, info: Any) -> str:
    value = info.default
    if name == "data_dir":
        return "`./.switchyard`"
    if value in (None, (), {}) or info.is_required():
        return ""
    if name.startswith("keep_"):
        return f"`{value / DAY:g}d`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{','.join(map(_value_text, value))}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _value_text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


if __name__ == "__main__":
    echo(page(), nl=False)
