"""A test that hangs is ended by its time limit, for each way to hang (tests/support)."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BODIES_BY_HANG = {
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
MODULE_START = """
import asyncio, time
from contextlib import suppress
import pytest
"""
TEST_TEMPLATE = """

@pytest.mark.timeout(0.5, method="signal")
async def test_{name}():
{body}
"""


def test_each_hanging_test_is_ended_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    names = {hang: hang.replace(" ", "_") for hang in BODIES_BY_HANG}
    tests = (
        TEST_TEMPLATE.format(name=name, body=BODIES_BY_HANG[hang]) for hang, name in names.items()
    )
    (tmp_path / "test_hangs.py").write_text(MODULE_START + "".join(tests))
    plugins = ["pytest_asyncio.plugin", "pytest_timeout", "tests.support.time_limits"]
    options = ["-q", "-rf", "-o", "asyncio_mode=auto", *(f"-p{each}" for each in plugins)]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.returncode == 1, result.stdout
    assert f"{len(BODIES_BY_HANG)} failed" in result.stdout
    for name in names.values():
        assert f"test_hangs.py::test_{name} - Failed: Timeout" in result.stdout, result.stdout
