"""Paths, links and requirements that the documentation and the code name exist."""

import re
from pathlib import Path

import pytest

from tests.support.docs import BLOCK, CODE, PAGES, ROOT

TOP_FOLDERS = (
    "broker",
    "services",
    "api",
    "cli",
    "tests",
    "docs",
    "benchmarks",
    "examples",
    "switchyard",
    "src",
)
PATH = re.compile(rf"(?:{'|'.join(TOP_FOLDERS)})/[\w./*-]*")
FILE_NAME = re.compile(r"[a-z_]+\.py")
LINK = re.compile(r"\]\((?!https?:)([^)\s]*)\)")
REQUIREMENT = re.compile(r"(?i)(?:\b|_)(?:requirement|rule|row)s?[ _]\(?([a-z]{1,2}\d{1,2})\b")
PAGE_LINK = re.compile(r"docs/[\w./-]+\.md(?:#[\w-]+)?")


def _missing_paths(page: Path) -> list[str]:
    """Return the paths in code quotes that do not exist. A bare `name.py` is in the folder of the
    path before it in its line, as in "`broker/dead/scan.py`; reading: `letters.py` there"."""
    missing = []
    for line in page.read_text().splitlines():
        folder: Path | None = None
        for quoted in CODE.findall(line):
            if PATH.fullmatch(quoted):
                base = ROOT / "src" if quoted.startswith("switchyard/") else ROOT
                matches = list(base.glob(quoted.rstrip("/")))
                if not matches or (quoted.endswith("/") and not matches[0].is_dir()):
                    missing.append(quoted)
                folder = (base / quoted).parent
            elif folder and FILE_NAME.fullmatch(quoted) and not (folder / quoted).exists():
                missing.append(f"{folder.relative_to(ROOT)}/{quoted}")
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    assert _missing_paths(page) == []


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    texts = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in texts}


def _broken_links(folder: Path, linking_file: Path, links: list[str]) -> list[str]:
    broken = []
    for link in links:
        path, _, section = link.partition("#")
        target = folder / path if path else linking_file
        is_page = target.suffix == ".md" and target.is_file()
        if not target.exists() or (section and (not is_page or section not in _anchors(target))):
            broken.append(link)
    return broken


@pytest.mark.parametrize(
    "page",
    [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md"],
    ids=lambda page: page.name,
)
def test_every_link_of_a_page_leads_to_a_page_and_section(page: Path) -> None:
    links = LINK.findall(BLOCK.sub("", page.read_text()))
    assert _broken_links(page.parent, page, links) == []


def test_every_page_and_section_that_the_code_names_exists() -> None:
    for module in (ROOT / "src").rglob("*.py"):
        links = PAGE_LINK.findall(module.read_text())
        assert _broken_links(ROOT, module, links) == [], module


def test_the_cited_requirements_are_those_of_their_page() -> None:
    page = ROOT / "docs" / "requirements.md"
    folders = ("src", "docs", "tests", "benchmarks", "charts", "deploy", "examples")
    all_paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path != page]
    endings = {".py", ".md", ".yml", ".yaml", ".tpl", ".sh", ".toml"}
    files = [path for path in all_paths if path.suffix in endings]
    cited = {
        requirement.upper()
        for path in [*files, *ROOT.glob("*.md"), ROOT / "Makefile"]
        for requirement in REQUIREMENT.findall(path.read_text())
    }
    assert cited == set(re.findall(r"^\| ([A-Z]+\d+) \|", page.read_text(), re.MULTILINE))
