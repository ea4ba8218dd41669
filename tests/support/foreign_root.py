"""RabbitMQ and Erlang of another Debian's root directory, run in place.

Neither chroot nor mounts are needed, so it works without special rights: inside a container, inside
a chroot, for any user who may read the root. Each program of Erlang's is started by the dynamic
loader of that root, with that root's libraries; what it starts in turn are this machine's.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from switchyard.cli.system.rabbitmq_config import NodeSetup
from switchyard.cli.system.rabbitmq_node import SCRIPTS, LocalNode

ERLANG = Path("usr/lib/erlang")
SHELL_SCRIPTS = frozenset({"erl", "start", "start_erl"})
"""Scripts of Erlang that contain the path of an installed Erlang, so they are not linked."""


class BrokenRootError(RuntimeError):
    """The root lacks what a Debian root with RabbitMQ has; the message names it."""


@dataclass(frozen=True, kw_only=True)
class ForeignRootSetup(NodeSetup):
    """The setup of a node from another root, with links to that root's Erlang in its directory."""

    root: Path

    def write(self) -> None:
        super().write()
        link_erlang(self.root, self.base_dir / "erlang")

    def environment(self) -> dict[str, str]:
        variables = super().environment()
        return variables | {"PATH": f"{self.base_dir / 'erlang' / 'bin'}:{variables['PATH']}"}


class ForeignRootNode(LocalNode):
    """A node of the version that is under `root`, a Debian root directory with RabbitMQ in it."""

    def __init__(self, *, root: Path, **options: Any) -> None:
        self._root = root.absolute()
        super().__init__(**options)

    def _find_scripts(self) -> Path:
        return scripts_under(self._root)

    def _make_setup(self, **choices: Any) -> NodeSetup:
        return ForeignRootSetup(root=self._root, **choices)


def scripts_under(root: Path) -> Path:
    """Return the directory of RabbitMQ's own scripts under `root`. Raises BrokenRootError."""
    scripts = root / SCRIPTS.relative_to("/")
    if not (scripts / "rabbitmq-server").exists():
        raise BrokenRootError(f"RabbitMQ is not installed under {root}")
    return scripts


def link_erlang(root: Path, to: Path) -> Path:
    """Make `to` an Erlang that runs the one under `root`, and return its directory of programs.

    It is made again each time, because the root may have been rebuilt. Raises BrokenRootError.
    """
    erlang = root / ERLANG
    loader = _first(root, "usr/lib64/ld-linux*.so.*", "usr/lib/ld-linux*.so.*")
    libraries = _first(root, "usr/lib/*/libc.so.6", "usr/lib/libc.so.6").parent
    programs = _first(root, f"{ERLANG}/erts-*/bin/erlexec").parent
    bin_dir = to / "bin"
    bin_dir.mkdir(parents=True, exist_ok=True)
    for name in ("lib", "releases"):
        _link(to / name, erlang / name)
    for boot in (erlang / "bin").glob("*.boot"):
        _link(bin_dir / boot.name, boot)
    for program in programs.iterdir():
        if program.name not in SHELL_SCRIPTS:
            loader_command = shlex.join([str(loader), "--library-path", str(libraries)])
            command = f'exec {loader_command} --argv0 "$0" {shlex.quote(str(program))} "$@"'
            _script(bin_dir / program.name, command)
    erlang_paths = f"ROOTDIR={shlex.quote(str(to))} BINDIR={shlex.quote(str(bin_dir))}"
    _script(
        bin_dir / "erl", f'export EMU=beam PROGNAME=erl {erlang_paths}\nexec "$BINDIR/erlexec" "$@"'
    )
    return bin_dir


def _first(root: Path, *patterns: str) -> Path:
    for pattern in patterns:
        if found := sorted(root.glob(pattern)):
            return found[-1]
    raise BrokenRootError(f"There is no {patterns[0]} under {root}: remove it and build it again")


def _link(path: Path, target: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def _script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
