"""The pictures of the wings in docs/architecture.md are the import contracts."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]
FLOORS = {
    each["containers"][0]: [set(floor.split(" | ")) for floor in each["layers"]]
    for each in CONTRACTS
    if each["type"] == "layers" and len(each.get("containers", [])) == 1
}


@pytest.mark.parametrize(
    "folder", ["services/engine", "services/pipeline", "services/common", "broker"]
)
def test_a_picture_shows_the_floors_of_its_contract(folder: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    (picture,) = re.findall(rf"^```\n{folder}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    floors = [
        {line.split()[0] for line in floor.splitlines() if line.strip()}
        for floor in re.split(r"^ +─+$", picture, flags=re.MULTILINE)
    ]
    assert floors == FLOORS["switchyard." + folder.replace("/", ".")]


def test_the_wings_stand_on_each_other_as_the_page_says() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert re.findall(r"^ └ (\w+)", page, re.MULTILINE) == [
        name for floor in FLOORS["switchyard.services"] for name in floor
    ]
