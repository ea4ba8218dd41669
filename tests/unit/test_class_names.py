"""One name, one class: whoever reads a name needs no import line to know what is meant."""

import re
from collections import defaultdict
from pathlib import Path

import switchyard

SOURCES = Path(switchyard.__file__).parent
CLASS = re.compile(r"^ *class ([A-Za-z]\w*)[(:]", re.MULTILINE)


def test_no_two_modules_define_a_class_of_the_same_name() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCES.rglob("*.py")):
        for name in CLASS.findall(path.read_text()):
            homes[name].append(str(path.relative_to(SOURCES)))
    assert "JobMessage" in homes, "the sources were not found"
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}
