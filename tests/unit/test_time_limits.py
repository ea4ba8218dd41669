"""A test that hangs is ended by its time limit, whatever it hangs in (tests/support)."""

import subprocess
import sys
from pathlib import Path

import pytest

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

@pytest.mark.timeout(1, method="signal")
async def test_hangs():
"""


@pytest.mark.parametrize("hang", HANGS)
def test_a_test_that_hangs_in_its_event_loop_is_ended(tmp_path: Path, hang: str) -> None:
    (tmp_path / "test_hangs.py").write_text(BEGIN + HANGS[hang])
    options = ["-q", "-p", "tests.support.time_limits", "-o", "asyncio_mode=auto"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1, ended.stdout
    assert "Timeout" in ended.stdout
    assert "1 failed" in ended.stdout
