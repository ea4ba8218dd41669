"""docs/settings.md, made from the settings: `python -m switchyard.cli.system.settings_page`."""

from __future__ import annotations

from typing import Any

from switchyard.cli.base.output import echo

HEAD = """# Settings

All settings are environment variables. A wrong value ends every command with a line that names the
variable. `jobctl up` writes those of its own system into `.switchyard/env`, for `source`.

This page is made from the code: `python -m switchyard.cli.system.settings_page > docs/settings.md`.

| variable | default | what it is |
| --- | --- | --- |
"""


def page() -> str:
    """The page's text."""
    from switchyard.services.settings import Settings

    return HEAD + "".join(
        f"| `JOBS_{name.upper()}` | {_default(name, info)} | {_cell(info.description or '')} |\n"
        for name, info in Settings.model_fields.items()
    )


def _default(name: str, info: Any) -> str:
    value = info.default
    if name == "data_dir":
        return "`./.switchyard`"
    if value in (None, (), {}) or info.is_required():
        return ""
    if isinstance(value, tuple):
        return f"`{','.join(map(_shown, value))}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


if __name__ == "__main__":
    echo(page(), nl=False)
