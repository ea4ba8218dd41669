"""The benchmarks run in an environment of their own, which does not have the tests' tools."""

import subprocess
import sys
from pathlib import Path

CONTENDERS = list((Path(__file__).parents[2] / "benchmarks/contenders").glob("[!_]*.py"))
OTHER_JOB_SYSTEMS = {"with_celery", "with_dramatiq", "with_faststream", "with_taskiq"}
"""Contenders that import packages of the benchmarks' environment, which tests do not have."""
WITHOUT_PYTEST = "import sys; sys.modules['pytest'] = None; sys.argv[1:] = ['--help']"


def test_benchmarks_start_without_pytest() -> None:
    program = f"{WITHOUT_PYTEST}; import runpy; runpy.run_module('benchmarks', run_name='__main__')"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "backfill-hot" in result.stdout


def test_contenders_without_packages_of_their_own_can_be_imported() -> None:
    names = sorted(each.stem for each in CONTENDERS if each.stem not in OTHER_JOB_SYSTEMS)
    program = WITHOUT_PYTEST + "".join(f"; import benchmarks.contenders.{name}" for name in names)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
