"""What holds an event loop in a test is found, if it is the product's."""

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

CALLS = ("hold_by_the_product", "hold_by_a_test")


def burn() -> list[Any]:
    """Hold the loop for a second of processor time, whatever else the machine does."""
    end = time.thread_time() + 1
    while time.thread_time() < end:
        pass
    return []


async def hold_by_the_product() -> None:
    metrics = Metrics()
    metrics.add_source(burn)
    await metrics.scrape()


async def hold_by_a_test() -> None:
    burn()


@pytest.mark.parametrize("call", CALLS)
def test_a_callback_of_the_product_that_holds_the_loop_is_reported(
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
    assert ("metrics.py" in reported) == (call == "hold_by_the_product")
    assert bool(reported) == (call == "hold_by_the_product")


def test_a_stack_without_a_loop_is_not_reported() -> None:
    made: dict[str, Any] = {}
    exec(
        compile(
            "lines = (each for each in 'ab')", f"{PRODUCT}/services/engine/dead/causes.py", "exec"
        ),
        made,
    )
    next(made["lines"])
    assert not is_product([made["lines"].gi_frame])


async def test_a_library_is_loaded_beside_the_loop_and_by_whom_it_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its import waits until the loop has gone on."""
    (tmp_path / "slow_library.py").write_text("import builtins\nassert builtins.gone_on.wait(60)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    gone_on = threading.Event()
    monkeypatch.setattr("builtins.gone_on", gone_on, raising=False)
    asked: list[str] = []
    loading = asyncio.create_task(load("slow_library", by=lambda: asked.append("by")))
    await eventually(lambda: "slow_library" in sys.modules)
    assert not is_loaded("slow_library")
    gone_on.set()
    await loading
    assert is_loaded("slow_library")
    await load("slow_library", by=lambda: asked.append("again"))
    assert asked == ["by"]


if __name__ == "__main__":
    guard_process(dict(os.environ))
    # As `jobctl` does: a command has begun the loop.
    command = compile("asyncio.run(call())", f"{PRODUCT}/cli/process/api.py", "exec")
    exec(command, {"asyncio": asyncio, "call": globals()[sys.argv[1]]})
