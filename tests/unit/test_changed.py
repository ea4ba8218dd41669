"""Which tests `make test-changed` runs, and that the names in CONTRIBUTING.md exist."""

import re
from pathlib import Path

import pytest

from tests.support.changed import ROOT, affected_tests, changed_files

THIS = Path(__file__)


def test_a_module_affects_the_tests_that_import_it_also_through_others() -> None:
    tests = affected_tests(["src/switchyard/services/engine/jobs/retry.py"])
    assert ROOT / "tests/unit/test_retry.py" in tests
    assert ROOT / "tests/integration/test_execution.py" in tests  # through the worker
    assert ROOT / "tests/unit/test_causes.py" not in tests


def test_a_module_affects_the_tests_that_run_a_program_importing_it() -> None:
    tests = affected_tests(["src/switchyard/services/engine/backfill/handler.py"])
    assert ROOT / "tests/chaos/test_backfill_killed.py" in tests


def test_a_test_affects_itself_and_a_conftest_all_tests_below() -> None:
    assert affected_tests(["tests/unit/test_changed.py"]) == [THIS]
    other_test = THIS.parent / "test_dependencies.py"
    assert affected_tests([str(other_test.relative_to(ROOT))]) == [other_test]
    acceptance_tests = affected_tests(["tests/acceptance/conftest.py"])
    assert {test.parent.name for test in acceptance_tests} == {"acceptance"}


def test_another_file_affects_the_tests_that_name_it() -> None:
    assert ROOT / "tests/unit/test_dependencies.py" in affected_tests(["pyproject.toml"])
    assert ROOT / "tests/acceptance/test_examples.py" in affected_tests(["examples/check_link.py"])


def test_the_paths_and_targets_in_contributing_md_exist() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"\bmake ([a-z-]+)", page)) <= set(targets)
    paths = re.findall(r"`((?:tests|src|docs|requirements)/[\w/.]*)`|\]\(([^)#]+)", page)
    named_paths = {path for pair in paths for path in pair if path}
    assert {"tests/unit", "docs/architecture.md"} <= named_paths
    assert [each for each in sorted(named_paths) if not (ROOT / each).exists()] == []


def test_a_missing_base_branch_is_an_error() -> None:
    with pytest.raises(LookupError, match="no-such-branch"):
        changed_files("no-such-branch")
