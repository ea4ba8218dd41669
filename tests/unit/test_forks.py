"""pytest-xdist's workers are forks of the process that collected the tests (tests/support)."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def worker_name() -> str:
    if (name := os.environ.get("PYTEST_XDIST_WORKER")) is None:
        pytest.skip("the tests run in the main process")
    return name


def test_a_worker_is_a_fork_of_the_collector(worker_name: str) -> None:
    assert b"tests.support.forks" in Path(f"/proc/{os.getppid()}/cmdline").read_bytes()


def test_a_fork_has_a_name_and_a_folder_of_its_own(
    worker_name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    assert vars(request.config)["workerinput"]["workerid"] == worker_name
    assert f"popen-{worker_name}" in tmp_path.parts
