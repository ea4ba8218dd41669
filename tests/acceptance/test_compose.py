"""The whole system in containers, from compose.yml as it stands."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BASES = (
    "docker.io/library/python:3.11-slim-bookworm",
    "docker.io/library/postgres:17",
    "docker.io/library/rabbitmq:4.3-management",
    "docker.io/prom/prometheus:v2.53.3",
)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_the_system_of_compose_yml_works_documents_and_survives_a_killed_container() -> None:
    """Only where the images are that `make test-compose` makes: Debian is not fetched four times
    for one test. Then with TLS between the containers, from the image that was just built."""
    podman = shutil.which("podman")
    if podman is None or any(
        subprocess.run([podman, "image", "exists", base], check=False).returncode for base in BASES
    ):
        pytest.skip("`make test-compose` has not been run on this machine")
    for arguments in ("", "--tls --no-build"):
        ran = subprocess.run(
            ["make", "test-compose", f"ARGS={arguments}"],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
