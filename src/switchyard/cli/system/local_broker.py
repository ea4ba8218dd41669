"""Find or start a broker for `jobctl demo` and `jobctl up`.

The first of these that is available: JOBS_AMQP_URL; a broker on localhost; a private node of the
installed RabbitMQ; as root, one that is installed with apt; a container.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from switchyard.cli.base.errors import CommandFailed

if TYPE_CHECKING:
    from switchyard.cli.system.rabbitmq_node import LocalNode
    from switchyard.services.common.settings import Settings

LOCALHOST_URL = "amqp://guest:guest@localhost:5672/"
IMAGE = "rabbitmq:3-management"
INSTALL_TIMEOUT = 600.0
"""Seconds that one command of apt-get or docker may take."""
CONTAINER_TIMEOUT = 60.0
"""Seconds until a started container must take connections."""
CONNECT_TIMEOUT = 2.0
"""Seconds for a TCP connection to localhost."""
QUIET_INSTALL = "#!/bin/sh\nexit 101\n"
"""Content of policy-rc.d: the package must not start a service of its own."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FoundBroker:
    """A broker that can be used, and where."""

    what: str
    """Description for people, without credentials."""
    amqp_url: str = field(repr=False)
    management_url: str = field(repr=False)
    is_private: bool
    """Whether it was started by this process, so that nothing else uses it."""
    node: LocalNode | None = None
    """The node, where this process has started it."""


def _do_nothing() -> None:
    """Do nothing while a broker starts: the default of `meanwhile`."""


@contextmanager
def find_or_start_broker(
    settings: Settings,
    directory: Path,
    tell: Tell,
    *,
    keeps_data: bool = False,
    meanwhile: Callable[[], None] = _do_nothing,
) -> Iterator[FoundBroker]:
    """Find or start the first available broker, in the order above; what was started ends with the
    context.

    `directory` is for a private node; with `keeps_data`, its data, password and ports stay for the
    next start. Without, it is killed at the end: it takes seconds to store what nobody reads.
    `meanwhile` is called once, before anything connects to a broker; if a private node is
    started, while it starts. Raises CommandFailed, saying what to install.
    """
    if settings.amqp_url is not None:
        meanwhile()
        yield _configured_broker(settings)
        return
    if _is_port_open():
        meanwhile()
        meanwhile = _do_nothing
        if asyncio.run(_accepts_guest()):
            management = "http://guest:guest@localhost:15672"
            yield FoundBroker("the broker on localhost:5672", LOCALHOST_URL, management, False)
            return
    from switchyard.cli.system.rabbitmq_node import find_installed

    if find_installed() is None and _can_install():
        _install(tell)
    if find_installed() is not None:
        with _private_node(directory, tell, keeps_data, meanwhile) as broker:
            yield broker
    elif shutil.which("docker"):
        meanwhile()
        with _container(tell) as broker:
            yield broker
    else:
        raise CommandFailed(
            "there is no broker: `sudo apt-get install rabbitmq-server`, or install docker, or set "
            "JOBS_AMQP_URL to a broker elsewhere"
        )


def _configured_broker(settings: Settings) -> FoundBroker:
    from switchyard.broker.addresses import display_address

    url = settings.require_amqp_url()
    return FoundBroker(
        f"the broker of JOBS_AMQP_URL, {display_address(url)}",
        url,
        settings.require_management_url(),
        is_private=False,
    )


def _is_port_open() -> bool:
    """Tell whether anything listens where a broker on localhost would."""
    try:
        socket.create_connection(("localhost", 5672), CONNECT_TIMEOUT).close()
    except OSError:
        return False
    return True


async def _accepts_guest() -> bool:
    """Tell whether a broker with its management API accepts guest on localhost."""
    from switchyard.broker.errors import BrokerUnavailable, ManagementError
    from switchyard.broker.management.client import ManagementClient
    from switchyard.broker.wire.connection import connected

    try:
        async with connected(LOCALHOST_URL, "jobctl"):
            pass
        async with ManagementClient("http://guest:guest@localhost:15672", timeout=2) as client:
            await client.version()
    except (BrokerUnavailable, ManagementError):
        return False
    return True


# --- a private node -----------------------------------------------------------------------------


@contextmanager
def _private_node(
    directory: Path, tell: Tell, keeps_data: bool, meanwhile: Callable[[], None]
) -> Iterator[FoundBroker]:
    from switchyard.cli.system.rabbitmq_node import LocalNode, NodeFile

    node_file = NodeFile(directory / "node.json") if keeps_data else None
    known = node_file.read() if node_file is not None else {}
    # Statistics once a second instead of every five: people are watching.
    node = LocalNode(
        base_dir=directory, extra_config={"collect_statistics_interval": "1000"}, **known
    )
    if node_file is not None:
        node_file.write(node)
    tell("Starting a private RabbitMQ …")
    node.begin()
    try:
        meanwhile()
        node.wait_until_ready()
        yield FoundBroker(
            f"RabbitMQ {node.version}, private, on 127.0.0.1:{node.amqp_port}",
            node.amqp_url,
            node.management_url,
            is_private=True,
            node=node,
        )
    finally:
        if keeps_data:
            node.stop()
        else:
            node.kill()


def _can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def _install(tell: Tell) -> None:
    """Install rabbitmq-server with apt-get, without starting its service."""
    tell("RabbitMQ is not installed: installing it with apt-get …")
    policy = Path("/usr/sbin/policy-rc.d")
    is_ours = not policy.exists()
    if is_ours:
        policy.write_text(QUIET_INSTALL)
        policy.chmod(0o755)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "rabbitmq-server"]
    try:
        for command in (["apt-get", "update", "-qq"], install):
            done = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=INSTALL_TIMEOUT,
                check=False,
            )
            if done.returncode:
                last = (done.stderr or done.stdout).strip().splitlines()[-1:]
                tell(f"{' '.join(command[:2])} failed: {' '.join(last)}")
                return
    except subprocess.TimeoutExpired:
        tell("apt-get took too long")
    finally:
        if is_ours:
            policy.unlink()


# --- a container --------------------------------------------------------------------------------


@contextmanager
def _container(tell: Tell) -> Iterator[FoundBroker]:
    from switchyard.cli.system.free_ports import free_port

    tell(f"Starting {IMAGE} with docker …")
    amqp_port, management_port = free_port(), free_port()
    password = secrets.token_urlsafe(24)
    name = f"switchyard-{secrets.token_hex(4)}"
    # The password goes through the environment: arguments can be read by every user.
    command = ["docker", "run", "--detach", "--rm", "--name", name]
    command += ["--publish", f"127.0.0.1:{amqp_port}:5672"]
    command += ["--publish", f"127.0.0.1:{management_port}:15672"]
    command += ["--env", "RABBITMQ_DEFAULT_USER", "--env", "RABBITMQ_DEFAULT_PASS", IMAGE]
    login = {"RABBITMQ_DEFAULT_USER": "switchyard", "RABBITMQ_DEFAULT_PASS": password}
    started = subprocess.run(
        command,
        env=os.environ | login,
        capture_output=True,
        text=True,
        timeout=INSTALL_TIMEOUT,
        check=False,
    )
    if started.returncode:
        last = " ".join(started.stderr.strip().splitlines()[-1:])
        raise CommandFailed(
            f"docker can't start a broker ({last}): `sudo apt-get install rabbitmq-server`, or set "
            "JOBS_AMQP_URL to a broker elsewhere"
        )
    try:
        url = f"amqp://switchyard:{password}@127.0.0.1:{amqp_port}/"
        management = f"http://switchyard:{password}@127.0.0.1:{management_port}"
        asyncio.run(_wait_until_ready(url))
        what = f"RabbitMQ in a container, on 127.0.0.1:{amqp_port}"
        yield FoundBroker(what, url, management, is_private=True)
    finally:
        subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)


async def _wait_until_ready(url: str) -> None:
    from switchyard.broker.errors import BrokerUnavailable
    from switchyard.broker.wire.connection import connected

    deadline = time.monotonic() + CONTAINER_TIMEOUT
    while True:
        try:
            async with connected(url, "jobctl"):
                return
        except BrokerUnavailable as error:
            if time.monotonic() > deadline:
                raise CommandFailed(f"the container is not ready: {error}") from error
        await asyncio.sleep(0.5)
