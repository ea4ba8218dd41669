"""Licences of the installed distributions, and the bill of materials."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sbom import COPYLEFT, ROOT, licences_of, name_of, read_installed_metadata

NOTE = (ROOT / "README.md").read_text().partition("## Licence note")[2].partition("\n## ")[0]


def test_the_licence_note_names_every_distribution_with_a_copyleft_licence() -> None:
    copyleft = {
        name
        for name, metadata in read_installed_metadata().items()
        if COPYLEFT.search(licences_of(metadata))
    }
    assert {"pymupdf", "certifi"} <= copyleft  # otherwise the metadata was not read
    named_in_note = {name_of(word.strip(".,()`[]")) for word in NOTE.split()}
    assert copyleft - named_in_note == set()


def test_every_distribution_states_its_licence() -> None:
    assert [
        name for name, metadata in read_installed_metadata().items() if not licences_of(metadata)
    ] == []


@pytest.mark.long
@pytest.mark.timeout(120)
def test_the_bill_of_materials_lists_the_installed_distributions(tmp_path: Path) -> None:
    target = tmp_path / "new" / "sbom.json"
    command = [sys.executable, "-m", "tests.support.sbom", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    text = target.read_text()
    bill = json.loads(text)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["name"] == "switchyard"
    components = {name_of(each["name"]): each for each in bill["components"]}
    assert components.keys() == read_installed_metadata().keys()
    assert "pytest" not in components
    assert all(each["version"] and each.get("licenses") for each in components.values())
    assert "AFFERO" in str(components["pymupdf"]["licenses"])
    assert components["pika"]["purl"].startswith("pkg:pypi/pika@")
    dependencies = {each["ref"]: each.get("dependsOn", []) for each in bill["dependencies"]}
    assert components["pika"]["bom-ref"] in dependencies["root-component"]
    refs = {each["bom-ref"] for each in components.values()}
    assert {ref for each in dependencies.values() for ref in each} <= refs
    assert str(ROOT) not in text
