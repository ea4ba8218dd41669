"""What a release says of itself, in the places that have to agree."""

import re
import tomllib
from pathlib import Path

import yaml
from typer.testing import CliRunner

from switchyard.cli.main import app

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_chart_and_command_have_the_version_of_the_package():
    chart = yaml.safe_load((ROOT / "charts/switchyard/Chart.yaml").read_text())
    shown = CliRunner().invoke(app, ["--version"])
    assert chart["version"] == chart["appVersion"] == shown.stdout.strip() == PROJECT["version"]


def test_the_changelog_has_an_entry_for_the_version_and_one_for_what_comes():
    versions = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert versions[:2] == ["Unreleased", PROJECT["version"]]


def test_the_licence_is_the_one_that_the_package_names():
    assert PROJECT["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text


def test_every_page_of_the_docs_is_in_the_site():
    pages = {each.relative_to(ROOT / "docs").as_posix() for each in (ROOT / "docs").rglob("*.md")}
    site = (ROOT / "mkdocs.yml").read_text()
    named = set(re.findall(r"[\w/.-]+\.md", site.partition("nav:\n  - index.md")[2]))
    assert named == pages
