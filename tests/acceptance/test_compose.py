"""The whole system in containers, from compose.yml unchanged."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BASE_IMAGES = (
    "docker.io/library/python:3.11-slim-bookworm",
    "docker.io/library/postgres:17",
    "docker.io/library/rabbitmq:4.3-management",
    "docker.io/prom/prometheus:v2.53.3",
)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_the_system_of_compose_yml_processes_documents_and_survives_a_killed_container() -> None:
    """Run only if the base images are there, which `make test-compose` fetches. The second run has
    TLS between the containers, and uses the image that the first has built."""
    podman = shutil.which("podman")
    if podman is None or any(
        subprocess.run([podman, "image", "exists", base], check=False).returncode
        for base in BASE_IMAGES
    ):
        pytest.skip("`make test-compose` has not been run on this machine")
    for arguments in ("", "--tls --no-build"):
        completed = subprocess.run(
            ["make", "test-compose", f"ARGS={arguments}"],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
        )
        assert completed.returncode == 0, f"{completed.stdout}\n{completed.stderr}"
