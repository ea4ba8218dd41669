"""What mkdocs is told: README.md is the first page, and links out of docs/ are names.

On the site there is nothing beside docs/, so a link to a file of the repository becomes its path.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any

ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
_INDEX = "index.md"


def on_files(files: Any, config: Any) -> Any:
    """Add README.md as the first page."""
    from mkdocs.structure.files import File

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, _INDEX, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point the links of a page to pages of the site."""
    path = page.file.src_uri
    source = "README.md" if path == _INDEX else f"docs/{path}"

    def replace(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return link[0]
        place = normpath(join(dirname(source), target))
        if place == "README.md":
            to = _INDEX
        elif place.startswith("docs/") and place.endswith((".md", ".png")):
            to = place.removeprefix("docs/")
        else:
            return f"{text} (`{place}`)" if text != place else f"`{place}`"
        up = "../" * path.count("/")
        return f"[{text}]({up}{to}{anchor})"

    return _LINK.sub(replace, markdown)
