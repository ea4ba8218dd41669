"""Write the page that `--help` prints: plain text, at most 80 columns wide.

Typer's own page needs all of rich with its Markdown and syntax colouring, which took longer than
everything else that `jobctl --help` does.
"""

from __future__ import annotations

import inspect
from typing import Any

FENCE = "```"


def write_help(command: Any, context: Any, formatter: Any) -> None:
    """Write a command's page with `formatter`, which wraps at the width of the terminal."""
    command.format_usage(context, formatter)
    _write_text(command.help, formatter)
    rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(context):
        row = parameter.get_help_record(context)
        if row is not None:
            section = "Arguments" if parameter.param_type_name == "argument" else "Options"
            rows[section].append((row[0].rstrip(), row[1]))
    for name, subcommand in getattr(command, "commands", {}).items():
        if not subcommand.hidden:
            panel = getattr(subcommand, "rich_help_panel", None)
            summary = (subcommand.help or "").split("\n\n")[0].replace("\n", " ")
            rows.setdefault(panel if isinstance(panel, str) else "Commands", []).append(
                (name, summary)
            )
    for section, section_rows in rows.items():
        if section_rows:
            formatter.write_paragraph()
            formatter.write_heading(section)
            with formatter.indentation():
                formatter.write_dl(section_rows)
    _write_text(command.epilog, formatter)


def _write_text(text: str | None, formatter: Any) -> None:
    """Write paragraphs, wrapped; text between fences is written unchanged."""
    if not text:
        return
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(_replace_fences(inspect.cleandoc(text)))


def _replace_fences(text: str) -> str:
    """Replace fences by the formatter's mark for text that is not wrapped: a line with a backspace
    before the paragraph."""
    lines = []
    is_fenced = False
    for line in text.splitlines():
        if line == FENCE:
            is_fenced = not is_fenced
            lines.append("\b" if is_fenced else "")
        else:
            lines.append(f"  {line}" if is_fenced else line)
    return "\n".join(lines)
