"""`--reload`: a worker, or all of `jobctl up`, starts again when a user's module has changed.

The worker is a process of its own, started like this one but without `--reload`. Changed modules
are imported in another process first: if that fails, the running worker stays as it is. Else the
worker is stopped as by SIGTERM, so running jobs get their grace, and started again.
"""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from switchyard.cli.base.errors import FAILED
from switchyard.cli.base.output import echo, say
from switchyard.cli.base.stopping import STOP_SIGNALS

POLL_INTERVAL = 0.3
"""Seconds between checks of the files' times."""
NOTHING_TO_WATCH = "there is no module of yours to watch"
JOBCTL = (sys.executable, "-P", "-m", "switchyard.cli.main")
PROBE = (sys.executable, "-P", "-m", "switchyard.cli.process.reload")

Times = dict[Path, int]


@dataclass(frozen=True, slots=True)
class ModuleProbe:
    """Result of importing the user's modules in another process."""

    files: tuple[Path, ...]
    """The user's source files that were imported with the modules."""
    error: str | None
    """Why they can't be used, in one line."""


@dataclass(slots=True)
class ModuleWatch:
    """Finds changes of the user's modules."""

    modules: Sequence[str]
    _times: Times = field(default_factory=dict)

    def begin(self) -> ModuleProbe:
        """Import the modules for the first time, and remember the times of their files."""
        module_probe = probe(self.modules)
        self._times = times_of(module_probe.files)
        return module_probe

    def find_change(self) -> tuple[list[str], ModuleProbe] | None:
        """Return the names of the files that have changed since the last call, and the modules as
        they are now; None if no file has changed."""
        if (now := times_of(self._times)) == self._times:
            return None
        changed = sorted(path.name for path in now if now[path] != self._times[path])
        module_probe = probe(self.modules)
        # Files that were there before stay watched: they may be missing only for a moment.
        self._times = times_of({*now, *module_probe.files})
        return changed, module_probe


@dataclass
class Reloader:
    """Runs `jobctl ARGUMENTS…` again and again until it is told to stop."""

    arguments: Sequence[str]
    modules: Sequence[str]
    worker: subprocess.Popen[bytes] | None = None
    stop_signals: int = 0
    """Signals that have been received."""
    _woken: threading.Event = field(default_factory=threading.Event)

    def run(self) -> int:
        """Run the worker until a signal comes, and return its exit code; return too when the worker
        ends by itself before anything has changed."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        watch = ModuleWatch(self.modules)
        module_probe = watch.begin()
        if not module_probe.files:
            say(f"reload: {module_probe.error or NOTHING_TO_WATCH}")
            return FAILED
        if module_probe.error is None:
            self._start()
        else:
            say(f"reload: {module_probe.error}; waiting for a change")
        changes = 0
        while not self.stop_signals:
            self._woken.wait(POLL_INTERVAL)
            if (code := self._new_exit_code()) is not None and not self.stop_signals:
                if not changes:
                    return code
                say(f"reload: the worker has ended (exit code {code}); waiting for a change")
            if (change := watch.find_change()) is None:
                continue
            changes += 1
            changed, module_probe = change
            if module_probe.error is not None:
                consequence = (
                    "the worker runs on as it was" if self.worker else "waiting for a change"
                )
                say(f"reload: {module_probe.error}; {consequence}")
                continue
            say(f"reload: {', '.join(changed)} changed; the worker starts again")
            self._stop()
            if not self.stop_signals:
                self._start()
        return self._stop() or 0

    def _start(self) -> None:
        # A session of its own: Ctrl-C is for this process, which passes it on once.
        self.worker = subprocess.Popen([*JOBCTL, *self.arguments], start_new_session=True)

    def _new_exit_code(self) -> int | None:
        """Return the exit code of a worker that has just ended by itself."""
        if self.worker is None or (code := self.worker.poll()) is None:
            return None
        self.worker = None
        return code

    def _stop(self) -> int | None:
        """Send the worker SIGTERM, wait (a second signal cuts it short), return its exit code."""
        worker = self.worker
        if worker is None:
            return None
        worker.send_signal(signal.SIGTERM)
        code = worker.wait()
        self.worker = None
        return code

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stop_signals += 1
        self._woken.set()
        if self.stop_signals > 1 and self.worker is not None:
            self.worker.send_signal(signal.SIGTERM)  # the worker's second: it ends at once


def times_of(files: Iterable[Path]) -> Times:
    """Return when each file was last changed, in nanoseconds; 0 for a missing one."""
    return {path: _time_of(path) for path in files}


def _time_of(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def probe(modules: Sequence[str]) -> ModuleProbe:
    """Import the modules in a process of its own."""
    done = subprocess.run(
        [*PROBE, *modules], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    try:
        result = json.loads(done.stdout.splitlines()[-1])
        return ModuleProbe(tuple(Path(each) for each in result["files"]), result["error"])
    except (ValueError, IndexError):
        # A module has ended the process, or has written to stdout.
        return ModuleProbe((), f"importing {', '.join(modules)} ended with {done.returncode}")


def main(modules: Sequence[str]) -> None:
    """Print what `probe` reads as one line of JSON, in the process that `probe` starts."""
    from switchyard.cli.base.lazy_command import find_modules_here
    from switchyard.services.engine.jobs.registry import Registry, RegistryError
    from switchyard.services.engine.wings import job_modules

    find_modules_here()
    before = set(sys.modules)
    error: str | None = None
    files = set(_origins(modules))
    try:
        Registry.load(dict.fromkeys((*job_modules(), *modules)))
    except RegistryError as registry_error:
        error = str(registry_error)
    for name in set(sys.modules).difference(before):
        path = getattr(sys.modules[name], "__file__", None)
        if path is not None and _is_user_file(Path(path)):
            files.add(str(Path(path).absolute()))
    echo(json.dumps({"files": sorted(files), "error": error}))


def _origins(modules: Iterable[str]) -> Iterable[str]:
    """Return the files of the modules themselves, also of those that can't be imported."""
    for name in modules:
        try:
            spec = importlib.util.find_spec(name.partition(".")[0])
        except (ImportError, ValueError):
            continue
        if spec is not None and spec.has_location and spec.origin is not None:
            yield str(Path(spec.origin).absolute())


def _is_user_file(path: Path) -> bool:
    roots = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
    roots.append(Path(__file__).parents[2])  # ours
    return path.suffix == ".py" and not any(path.is_relative_to(root) for root in roots)


if __name__ == "__main__":
    main(sys.argv[1:])
