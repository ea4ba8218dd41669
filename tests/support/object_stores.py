"""Object stores to test against: an S3 server (moto's) and Azure's own (azurite), on loopback."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

import httpx

from switchyard.cli.system.free_ports import LOOPBACK, free_port
from switchyard.cli.system.rabbitmq_node import end_with_this_process
from tests.support.missing import MissingError

CONTAINER = "switchyard"
_ACCOUNT = "devstoreaccount1"
_KEY = base64.b64encode(b"of this test alone, and of no account").decode()


def _installed(name: str) -> Path:
    cache = os.environ.get("SWITCHYARD_CACHE") or Path.home() / ".cache" / "switchyard"
    installations = sorted(Path(cache).glob(f"{name}-*"))
    if not installations:
        raise MissingError(f"{name} is not installed: make test-deps, as root")
    return installations[-1]


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Run an S3 server with an empty bucket, and yield the environment variables of its clients.
    Raises MissingError."""
    port = free_port()
    python = _installed("moto") / "bin" / "python"
    with _running([python, "-m", "moto.server", "-H", LOOPBACK, "-p", str(port)], port, {}):
        httpx.put(f"http://{LOOPBACK}:{port}/{CONTAINER}", trust_env=False).raise_for_status()
        yield {
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "of-this-test-alone",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{LOOPBACK}:{port}",
            "AWS_ALLOW_HTTP": "true",
        }


@contextmanager
def azure_server(directory: Path) -> Iterator[dict[str, str]]:
    """Run an Azure server with an empty container, and yield the environment variables of its
    clients."""
    port = free_port()
    main = _installed("azurite") / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    command = [
        *("node", main, "--blobHost", LOOPBACK, "--blobPort", str(port), "--location", directory),
        *("--skipApiVersionCheck", "--silent", "--disableTelemetry"),
    ]
    with _running(command, port, {"AZURITE_ACCOUNTS": f"{_ACCOUNT}:{_KEY}"}):
        _make_container(port)
        yield {
            "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
            "AZURE_STORAGE_ENDPOINT": f"http://{LOOPBACK}:{port}/{_ACCOUNT}",
            "AZURE_ALLOW_HTTP": "true",
        }


@contextmanager
def _running(command: list[object], port: int, environment: dict[str, str]) -> Iterator[None]:
    server = subprocess.Popen(
        [str(part) for part in command],
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    reaper = end_with_this_process(server)
    try:
        deadline = time.monotonic() + 60
        while not _answers(port):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} did not start")
            time.sleep(0.05)
        yield
    finally:
        reaper.kill()
        reaper.wait()
        if reaper.stdin is not None:
            reaper.stdin.close()
        server.kill()
        server.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), 1).close()
    except OSError:
        return False
    return True


def _make_container(port: int) -> None:
    """Make a container by a signed request, because obstore can't make one."""
    date, version = formatdate(usegmt=True), "2021-08-06"
    path = f"/{_ACCOUNT}/{CONTAINER}"
    string_to_sign = (
        f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:{version}\n"
        f"/{_ACCOUNT}{path}\nrestype:container"
    )
    digest = hmac.new(base64.b64decode(_KEY), string_to_sign.encode(), hashlib.sha256).digest()
    httpx.put(
        f"http://{LOOPBACK}:{port}{path}?restype=container",
        headers={
            "x-ms-date": date,
            "x-ms-version": version,
            "Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}",
        },
        trust_env=False,
    ).raise_for_status()
