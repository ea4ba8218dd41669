"""The version, licence and pages of a release agree in all places that name them."""

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
    result = CliRunner().invoke(app, ["--version"])
    assert chart["version"] == chart["appVersion"] == result.stdout.strip() == PROJECT["version"]


def test_the_changelog_begins_with_unreleased_and_the_version():
    versions = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert versions[:2] == ["Unreleased", PROJECT["version"]]


def test_the_licence_file_is_that_of_the_package():
    assert PROJECT["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text


def test_every_page_of_the_docs_is_in_the_sites_navigation():
    pages = {each.relative_to(ROOT / "docs").as_posix() for each in (ROOT / "docs").rglob("*.md")}
    site = (ROOT / "mkdocs.yml").read_text()
    listed = set(re.findall(r"[\w/.-]+\.md", site.partition("nav:\n  - index.md")[2]))
    assert listed == pages
