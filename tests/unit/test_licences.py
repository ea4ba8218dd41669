"""What runs is known: its licences, and a bill of materials."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sbom import COPYLEFT, ROOT, installed, licences_of, name_of

NOTE = (ROOT / "README.md").read_text().partition("## Licence note")[2].partition("\n## ")[0]


def test_the_licence_note_names_every_part_under_a_copyleft_licence() -> None:
    copyleft = {name for name, about in installed().items() if COPYLEFT.search(licences_of(about))}
    assert {"pymupdf", "certifi"} <= copyleft  # else the metadata are not read
    named = {name_of(word.strip(".,()`[]")) for word in NOTE.split()}
    assert copyleft - named == set()


def test_every_part_says_what_its_licence_is() -> None:
    assert [name for name, about in installed().items() if not licences_of(about)] == []


@pytest.mark.long
@pytest.mark.timeout(120)
def test_the_bill_of_materials_lists_what_runs_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "new" / "sbom.json"
    command = [sys.executable, "-m", "tests.support.sbom", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    text = target.read_text()
    bill = json.loads(text)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["name"] == "switchyard"
    components = {name_of(each["name"]): each for each in bill["components"]}
    assert components.keys() == installed().keys()
    assert "pytest" not in components
    assert all(each["version"] and each.get("licenses") for each in components.values())
    assert "AFFERO" in str(components["pymupdf"]["licenses"])
    assert components["pika"]["purl"].startswith("pkg:pypi/pika@")
    needs = {each["ref"]: each.get("dependsOn", []) for each in bill["dependencies"]}
    assert components["pika"]["bom-ref"] in needs["root-component"]
    refs = {each["bom-ref"] for each in components.values()}
    assert {ref for each in needs.values() for ref in each} <= refs
    assert str(ROOT) not in text
