"""Wheels of Switchyard, installed in environments of their own beside the libraries of ours."""

import io
import json
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.missing import skip_or_fail

ROOT = Path(__file__).parents[2]
UNTIL_THE_FIRST_TAG = "a81a7152b1789b68d87e3266a150da5e4817a7c2"
"""The commit that stands for the last release while none is tagged: tables of version 0034, the
first whose programs go on with newer ones."""
NEEDED = ("pyproject.toml", "README.md", "LICENSE", "src")
"""Of a commit, for its wheel."""


@dataclass
class Jobctl:
    """The command of an installation, run in a folder."""

    program: Path
    environment: dict[str, str]
    folder: Path

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *arguments],
            cwd=self.folder,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=90,
        )

    def ok(self, *arguments: str, stdin: str = "") -> str:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    @contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command on; it is killed at the end. Its log is named after it, in the folder."""
        log = self.folder / f"{arguments[0]}.log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                [self.program, *arguments],
                cwd=self.folder,
                env=self.environment,
                stdout=file,
                stderr=file,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def pip(*arguments: str) -> None:
    """Run pip as quietly as it can be."""
    quiet = ("--quiet", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "pip", *quiet, *arguments], check=True)


def build_wheel(source: Path, target: Path) -> Path:
    """Build the wheel of a checkout into a folder, without anything from elsewhere."""
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(target), str(source))
    (made,) = target.glob("switchyard-*.whl")
    return made


def make_environment(base: Path) -> tuple[Path, Path]:
    """Make an environment; the folders of its programs and of its packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", base / "env"], check=True)
    return base / "env/bin", site_of(base / "env")


def site_of(environment: Path) -> Path:
    return Path(sysconfig.get_path("purelib", "venv", vars={"base": str(environment)}))


def share_libraries(site: Path) -> None:
    """Let an environment import what is installed in ours. A .pth file in a directory that a .pth
    file names is not read: our clone is not in the path."""
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")


def install_last_release(base: Path) -> Path:
    """Install the last release in an environment of its own, from its tag in this repository, or
    from UNTIL_THE_FIRST_TAG; its `jobctl`. Skips, and fails in CI, where git has neither."""
    # A tag of HEAD itself is no release before this one.
    tag = _git("describe", "--tags", "--abbrev=0", "--match=v[0-9]*", "HEAD~1")
    commit = tag.stdout.decode().strip() if tag.returncode == 0 else UNTIL_THE_FIRST_TAG
    files = _git("archive", commit, *NEEDED)
    if files.returncode != 0:
        said = files.stderr.decode(errors="replace").strip().splitlines() or ["nothing"]
        skip_or_fail(
            f"git has no commit {commit[:12]} to build the last release of (it says: {said[-1]}): "
            "clone the whole history, or `git fetch --unshallow --tags`"
        )
    with tarfile.open(fileobj=io.BytesIO(files.stdout)) as archive:
        archive.extractall(base / "source", filter="data")
    wheel = build_wheel(base / "source", base)
    programs, site = make_environment(base)
    share_libraries(site)
    pip("--python", str(programs / "python"), "install", "--no-deps", str(wheel))
    return programs / "jobctl"


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True)
    except FileNotFoundError:
        skip_or_fail("git is not installed")
