"""Names of classes are unique in the package, so a reader need not look up the import."""

import re
from collections import defaultdict
from pathlib import Path

import switchyard

SOURCES = Path(switchyard.__file__).parent
CLASS = re.compile(r"^ *class ([A-Za-z]\w*)[(:]", re.MULTILINE)


def test_no_two_modules_define_a_class_of_the_same_name() -> None:
    modules_by_class: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCES.rglob("*.py")):
        for name in CLASS.findall(path.read_text()):
            modules_by_class[name].append(str(path.relative_to(SOURCES)))
    assert "JobMessage" in modules_by_class, "the sources were not found"
    assert {name: modules for name, modules in modules_by_class.items() if len(modules) > 1} == {}
