"""The benchmarks run in an environment of their own, which does not have the tests' tools."""

import subprocess
import sys

WITHOUT_PYTEST = "import sys; sys.modules['pytest'] = None; sys.argv[1:] = ['--help']"


def test_benchmarks_start_without_pytest() -> None:
    program = f"{WITHOUT_PYTEST}; import runpy; runpy.run_module('benchmarks', run_name='__main__')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "backfill-hot" in ended.stdout
