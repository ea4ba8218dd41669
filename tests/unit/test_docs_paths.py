"""Whoever follows a path that the documentation names arrives."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOPS = ("broker", "services", "api", "cli", "tests", "docs", "benchmarks", "switchyard", "src")
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(rf"(?:{'|'.join(TOPS)})/[\w./*-]*")
BESIDE = re.compile(r"[a-z_]+\.py")


def _missing(page: Path) -> list[str]:
    """Paths in code quotes that do not exist. A bare `name.py` is in the folder of the path that
    its line has named before it, as in "`broker/dead/scan.py`; reading: `letters.py` there"."""
    missing = []
    for line in page.read_text().splitlines():
        folder: Path | None = None
        for quoted in CODE.findall(line):
            if PATH.fullmatch(quoted):
                base = ROOT / "src" if quoted.startswith("switchyard/") else ROOT
                found = list(base.glob(quoted.rstrip("/")))
                if not found or (quoted.endswith("/") and not found[0].is_dir()):
                    missing.append(quoted)
                folder = (base / quoted).parent
            elif folder and BESIDE.fullmatch(quoted) and not (folder / quoted).exists():
                missing.append(f"{folder.relative_to(ROOT)}/{quoted}")
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    assert _missing(page) == []
