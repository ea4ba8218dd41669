"""Configuration of a private RabbitMQ node: its files and its environment."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from switchyard.cli.system.free_ports import LOOPBACK

CONTROL = "rabbitmqctl"
"""The script in a node's directory that speaks to this node and to no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSetup:
    """All settings of one node, as LocalNode explains them. Everything that the node reads and
    writes lies in `base_dir`."""

    base_dir: Path
    amqp_port: int
    management_port: int
    dist_port: int
    epmd_port: int
    prometheus_port: int | None
    definitions: Path | None
    advanced: str | None
    extra_config: dict[str, str]
    user: str
    password: str = field(repr=False)
    name: str = "switchyard"
    cookie: str | None = field(default=None, repr=False)

    def write(self) -> None:
        """Write every file that the node reads, and make the directories into which it writes."""
        make_private(self.base_dir)
        for name in ("data", "log", "home"):
            (self.base_dir / name).mkdir(exist_ok=True)
        if self.cookie is not None:
            _write_cookie(self.base_dir / "home" / ".erlang.cookie", self.cookie)
        plugins = "rabbitmq_management"
        plugins += "" if self.prometheus_port is None else ",rabbitmq_prometheus"
        write_private(self.base_dir / "enabled_plugins", f"[{plugins}].\n")
        write_private(self.base_dir / "definitions.json", json.dumps(self._all_definitions()))
        write_private(self.base_dir / "advanced.config", self.advanced or "[].\n")
        config = "".join(f"{key} = {value}\n" for key, value in self._config().items())
        write_private(self.base_dir / "rabbitmq.conf", config)

    def write_control(self, scripts: Path) -> None:
        """Write a `rabbitmqctl` for people, usable from any shell: the installed one knows neither
        this node's name server nor its cookie."""
        environment = self.environment().items()
        assignments = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment)
        command = shlex.quote(str(scripts / CONTROL))
        script = self.base_dir / CONTROL
        write_private(script, f'#!/bin/sh\nexec env -i {assignments} {command} "$@"\n')
        script.chmod(0o700)

    def _config(self) -> dict[str, str]:
        config = {
            "listeners.tcp.1": f"{LOOPBACK}:{self.amqp_port}",
            "management.tcp.ip": LOOPBACK,
            "management.tcp.port": str(self.management_port),
            "load_definitions": str(self.base_dir / "definitions.json"),
            "vm_memory_high_watermark.absolute": "2GiB",
            "disk_free_limit.absolute": "50MB",
            "raft.wal_max_size_bytes": "64000000",
        }
        if self.prometheus_port is not None:
            config["prometheus.tcp.ip"] = LOOPBACK
            config["prometheus.tcp.port"] = str(self.prometheus_port)
        return config | self.extra_config

    def _all_definitions(self) -> dict[str, Any]:
        """Return the definitions asked for, with a user who may do everything in each of their
        vhosts.

        A node that loads definitions makes neither a vhost nor a user of its own.
        """
        definitions = json.loads(self.definitions.read_text()) if self.definitions else {}
        vhosts = [vhost for vhost in definitions.get("vhosts", []) if vhost["name"] != "/"]
        vhosts.append({"name": "/"})
        user = {
            "name": self.user,
            "password_hash": _hash(self.password),
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": "administrator",
            "limits": {},
        }
        everything = {"user": self.user, "configure": ".*", "write": ".*", "read": ".*"}
        permissions = [{"vhost": vhost["name"], **everything} for vhost in vhosts]
        return definitions | {
            "vhosts": vhosts,
            "users": [*definitions.get("users", []), user],
            "permissions": [*definitions.get("permissions", []), *permissions],
        }

    def environment(self) -> dict[str, str]:
        """Return the whole environment of the node and its tools: no other variable of this process
        reaches them."""
        here = self.base_dir
        loopback_only = "-kernel inet_dist_use_interface {127,0,0,1}"
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
            "LANG": "C.UTF-8",
            "HOME": str(here / "home"),
            "ERL_CRASH_DUMP_SECONDS": "0",
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "ERL_EPMD_PORT": str(self.epmd_port),
            "RABBITMQ_NODENAME": f"{self.name}@localhost",
            "RABBITMQ_DIST_PORT": str(self.dist_port),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(here / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(here / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(here / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(here / "data"),
            "RABBITMQ_LOG_BASE": str(here / "log"),
            "RABBITMQ_LOGS": "-",
            # Two schedulers that don't spin while they wait: a small machine has other work.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                f"{loopback_only} +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
            ),
            "RABBITMQ_CTL_ERL_ARGS": loopback_only,
            # Makes the script replace itself by the broker, instead of waiting for it in a shell.
            "RUNNING_UNDER_SYSTEMD": "true",
        }


def _write_cookie(path: Path, cookie: str) -> None:
    """Write the secret that nodes of one cluster share. Erlang refuses a file that others may
    read."""
    if not path.exists():
        write_private(path, cookie)
        path.chmod(0o400)


def _hash(password: str) -> str:
    """Hash a password as rabbit_password_hashing_sha256 does: four bytes of salt, then the
    digest."""
    salt = secrets.token_bytes(4)
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def make_private(directory: Path) -> None:
    """Make a directory that only its owner may enter; an existing one is not changed."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read; make its directory if missing. An existing file
    that others may read is closed to them before anything is written."""
    make_private(path.parent)
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(text)
