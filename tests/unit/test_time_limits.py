"""A test that hangs is ended by its time limit, whatever it hangs in (tests/support)."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HANGS = {
    "a task that does not end": """
    async def stay() -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    task = asyncio.create_task(stay())
    await asyncio.sleep(3600)
""",
    "a callback that gets the signal": """
    def wait() -> None:
        time.sleep(3600)

    asyncio.get_running_loop().call_soon(wait)
    await asyncio.sleep(3600)
""",
    "a loop that is never idle": """
    while True:
        await asyncio.sleep(0)
""",
    "a callback that comes again and again": """
    def work() -> None:
        time.sleep(0.01)
        asyncio.get_running_loop().call_soon(work)

    work()
    await asyncio.sleep(3600)
""",
}
BEGIN = """
import asyncio, time
from contextlib import suppress
import pytest
"""
TEST = """

@pytest.mark.timeout(0.5, method="signal")
async def test_{name}():
{body}
"""


def test_tests_that_hang_in_their_event_loop_are_ended_each_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    names = {hang: hang.replace(" ", "_") for hang in HANGS}
    tests = (TEST.format(name=name, body=HANGS[hang]) for hang, name in names.items())
    (tmp_path / "test_hangs.py").write_text(BEGIN + "".join(tests))
    plugins = ["pytest_asyncio.plugin", "pytest_timeout", "tests.support.time_limits"]
    options = ["-q", "-rf", "-o", "asyncio_mode=auto", *(f"-p{each}" for each in plugins)]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 1, ended.stdout
    assert f"{len(HANGS)} failed" in ended.stdout
    for name in names.values():
        assert f"test_hangs.py::test_{name} - Failed: Timeout" in ended.stdout, ended.stdout
