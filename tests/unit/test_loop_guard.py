"""Callbacks of the package that block a test's event loop are reported."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from switchyard.services.common.library_loading import is_loaded, load
from switchyard.services.engine.monitoring.metrics import Metrics
from tests.support.eventually import eventually
from tests.support.loop_guard import PRODUCT, REPORTS, guard_process, is_product

CALLS = ("block_by_the_product", "block_by_a_test")


def block_loop() -> list[Any]:
    """Block the loop for a second of processor time, whatever the load of the machine."""
    end = time.thread_time() + 1
    while time.thread_time() < end:
        pass
    return []


async def block_by_the_product() -> None:
    metrics = Metrics()
    metrics.add_source(block_loop)
    await metrics.scrape()


async def block_by_a_test() -> None:
    block_loop()


@pytest.mark.parametrize("call", CALLS)
def test_a_callback_of_the_product_that_blocks_the_loop_is_reported(
    tmp_path: Path, call: str
) -> None:
    reports = tmp_path / "reports"
    reports.touch()
    environment = {
        **os.environ,
        REPORTS: str(reports),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    subprocess.run([sys.executable, __file__, call], env=environment, check=True)
    reported = reports.read_text()
    assert ("metrics.py" in reported) == (call == "block_by_the_product")
    assert bool(reported) == (call == "block_by_the_product")


def test_a_stack_without_a_loop_is_not_reported() -> None:
    namespace: dict[str, Any] = {}
    exec(
        compile(
            "lines = (each for each in 'ab')", f"{PRODUCT}/services/engine/dead/causes.py", "exec"
        ),
        namespace,
    )
    next(namespace["lines"])
    assert not is_product([namespace["lines"].gi_frame])


async def test_a_library_is_loaded_without_blocking_the_loop_by_the_given_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's import ends only after the loop has run on."""
    (tmp_path / "slow_library.py").write_text(
        "import builtins\nassert builtins.loop_ran.wait(60)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    loop_ran = threading.Event()
    monkeypatch.setattr("builtins.loop_ran", loop_ran, raising=False)
    load_calls: list[str] = []
    loading = asyncio.create_task(load("slow_library", by=lambda: load_calls.append("by")))
    await eventually(lambda: "slow_library" in sys.modules)
    assert not is_loaded("slow_library")
    loop_ran.set()
    await loading
    assert is_loaded("slow_library")
    await load("slow_library", by=lambda: load_calls.append("again"))
    assert load_calls == ["by"]


if __name__ == "__main__":
    guard_process(dict(os.environ))
    # The loop was started by a command of the package, as in `jobctl`.
    command = compile("asyncio.run(call())", f"{PRODUCT}/cli/process/api.py", "exec")
    exec(command, {"asyncio": asyncio, "call": globals()[sys.argv[1]]})
