"""The diagrams in docs/architecture.md show the layers of the import contracts."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]
LAYERS = {
    each["containers"][0]: [set(layer.split(" | ")) for layer in each["layers"]]
    for each in CONTRACTS
    if each["type"] == "layers" and len(each.get("containers", [])) == 1
}


@pytest.mark.parametrize(
    "folder", ["services/engine", "services/pipeline", "services/common", "broker"]
)
def test_a_diagram_shows_the_layers_of_its_contract(folder: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    (diagram,) = re.findall(rf"^```\n{folder}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    layers = [
        {line.split()[0] for line in layer.splitlines() if line.strip()}
        for layer in re.split(r"^ +─+$", diagram, flags=re.MULTILINE)
    ]
    assert layers == LAYERS["switchyard." + folder.replace("/", ".")]


def test_the_layers_of_the_wings_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert re.findall(r"^ └ (\w+)", page, re.MULTILINE) == [
        name for layer in LAYERS["switchyard.services"] for name in layer
    ]
