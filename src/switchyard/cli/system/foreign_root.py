"""RabbitMQ and Erlang out of another Debian's root directory, run where they lie.

Neither chroot nor mounts are needed, so it works without special rights: inside a container, inside
a chroot, for any user who may read the root. Each program of Erlang's is started by the dynamic
loader of that root, with that root's libraries; what it starts in turn are this machine's.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from switchyard.cli.base.errors import CommandFailed

ERLANG = Path("usr/lib/erlang")
SHELL_SCRIPTS = frozenset({"erl", "start", "start_erl"})
"""Erlang's own; they have the place of an installed Erlang written into them."""


class BrokenRootError(CommandFailed):
    """The root lacks what a Debian root with RabbitMQ has; the message names it."""


def link_erlang(root: Path, to: Path) -> Path:
    """Make `to` an Erlang that runs the one under `root`, and return its directory of programs.

    Made anew each time: the root may have been built again since. Raises BrokenRootError.
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
            loaded = shlex.join([str(loader), "--library-path", str(libraries)])
            command = f'exec {loaded} --argv0 "$0" {shlex.quote(str(program))} "$@"'
            _script(bin_dir / program.name, command)
    places = f"ROOTDIR={shlex.quote(str(to))} BINDIR={shlex.quote(str(bin_dir))}"
    _script(bin_dir / "erl", f'export EMU=beam PROGNAME=erl {places}\nexec "$BINDIR/erlexec" "$@"')
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
