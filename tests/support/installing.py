"""Wheels of Switchyard, installed in new environments that share this one's libraries."""

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
SUBSTITUTE_RELEASE = "a81a7152b1789b68d87e3266a150da5e4817a7c2"
"""The commit that stands for the last release while none is tagged: tables of version 0034, the
first whose programs go on with newer ones."""
WHEEL_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src")
"""Files of a commit from which its wheel is built."""


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
        result = self.run(*arguments, stdin=stdin)
        assert result.returncode == 0, f"{arguments}: {result.stdout}{result.stderr}"
        return result.stdout

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
    (wheel,) = target.glob("switchyard-*.whl")
    return wheel


def make_environment(base: Path) -> tuple[Path, Path]:
    """Make an environment; return the folders of its programs and of its packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", base / "env"], check=True)
    return base / "env/bin", site_of(base / "env")


def site_of(environment: Path) -> Path:
    return Path(sysconfig.get_path("purelib", "venv", vars={"base": str(environment)}))


def share_libraries(site: Path) -> None:
    """Let an environment import the libraries of this one. Python reads no .pth files in a
    directory that another .pth file names, so this clone is not in its path."""
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")


def install_last_release(base: Path) -> Path:
    """Install the last release in an environment of its own, from its tag in this repository, or
    from SUBSTITUTE_RELEASE, and return its `jobctl`. Skips, or fails in CI, if git has neither."""
    # A tag of HEAD itself is no release before this one.
    tag = _git("describe", "--tags", "--abbrev=0", "--match=v[0-9]*", "HEAD~1")
    commit = tag.stdout.decode().strip() if tag.returncode == 0 else SUBSTITUTE_RELEASE
    files = _git("archive", commit, *WHEEL_SOURCES)
    if files.returncode != 0:
        git_errors = files.stderr.decode(errors="replace").strip().splitlines() or ["nothing"]
        skip_or_fail(
            f"git has no commit {commit[:12]} to build the last release of (it says: "
            f"{git_errors[-1]}): "
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
