"""docs/doctor.md has a line for every finding and for nothing else; a check reports each."""

import re
from pathlib import Path

from switchyard.services.engine.monitoring import checks
from switchyard.services.engine.monitoring.check import Finding
from switchyard.services.llm import operations as llm_checks
from switchyard.services.pipeline import operations as pipeline_checks
from switchyard.services.pipeline.index import index_check

ROOT = Path(__file__).parents[2]


def test_every_finding_is_documented_and_no_other() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text()
    assert re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE) == [str(each) for each in Finding]


def test_every_finding_is_reported_by_a_check() -> None:
    paths = [*Path(checks.__path__[0]).glob("*.py")]
    paths += [Path(str(module.__file__)) for module in (index_check, llm_checks, pipeline_checks)]
    code = "".join(path.read_text() for path in paths)
    assert [each for each in Finding if f"Finding.{each.name}" not in code] == []
