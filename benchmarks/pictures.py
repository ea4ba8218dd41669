"""Take the pictures of README and docs/dashboard.md: python -m benchmarks.pictures [--minutes 20].

It runs `jobctl up` in a new folder, with hot jobs beside nearly as much bulk work as there are
slots for, and a few that fail. Run it on an idle machine: the overview shows how long hot jobs
waited.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from benchmarks.common import end_group, environment
from switchyard.cli.demo.command import JOBS_MODULE
from switchyard.cli.system.free_ports import free_port
from tests.support.browser import opened_browser

DOCS = Path(__file__).resolve().parent.parent / "docs"
PICTURES = {"": "dashboard.png", "/dead": "dead-letters.png"}
"""Files in DOCS, by the path of the page."""
WIDTH, HEIGHT = 1200, 700
MAX_BYTES = 200_000
START_TIMEOUT = 90.0
HOT_INTERVAL, BULK_PER_HOT = 0.5, 5
"""Seconds between two hot jobs, and bulk jobs that are published with each."""


def send(client: httpx.Client, routing_key: str, **payload: float) -> None:
    """Publish a job. One that its full lane refuses is left out."""
    answer = client.post("/jobs", json={"routing_key": routing_key, "payload": payload})
    if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
        answer.raise_for_status()


def work(client: httpx.Client, seconds: float) -> None:
    """Publish jobs for that long."""
    began, number = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        send(client, "hot.demo_page", seconds=0.2)
        for _ in range(BULK_PER_HOT):
            send(client, "backfill.demo_page", seconds=0.25)
        if number % 100 == 50:
            send(client, "hot.demo_strict", parts=0)
        if number % 40 == 20:
            send(client, "hot.demo_flaky", failures=1)
        number += 1
        time.sleep(max(0.0, began + number * HOT_INTERVAL - time.monotonic()))


def take(address: str) -> None:
    """Take each picture. Raises RuntimeError for one that is too large."""
    with opened_browser() as browser:
        for path, name in PICTURES.items():
            browser.resize(WIDTH, HEIGHT)
            browser.open(f"{address}/dashboard{path}")
            browser.find("[data-live-state=on]")
            browser.screenshot(DOCS / name)
            if (size := (DOCS / name).stat().st_size) > MAX_BYTES:
                raise RuntimeError(
                    f"{name} has {size:,} bytes, and {MAX_BYTES:,} at most are wanted"
                )


def main() -> None:
    """Run the system, the work and the browser."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="how long jobs are published")
    minutes: float = parser.parse_args().minutes
    with tempfile.TemporaryDirectory(prefix="switchyard-pictures-") as folder:
        port = free_port()
        address = f"http://127.0.0.1:{port}"
        process = subprocess.Popen(
            [sys.executable, "-m", "switchyard.cli.main", "up", "--api-port", str(port)],
            env=environment("", JOBS_MODULES=JOBS_MODULE, JOBS_DATA_DIR=folder),
            start_new_session=True,
        )
        try:
            with httpx.Client(base_url=address, trust_env=False, timeout=30) as client:
                deadline = time.monotonic() + START_TIMEOUT
                while not _is_ready(client):
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise RuntimeError("the system did not start")
                    time.sleep(0.5)
                work(client, minutes * 60)
            take(address)
        finally:
            end_group(process)


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/health/ready").is_success
    except httpx.TransportError:
        return False


if __name__ == "__main__":
    main()
