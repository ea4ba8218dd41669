"""Check this host: its settings and modules, its disk space, the file storage, and who can read its
files."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from switchyard.broker.wording import pluralize
from switchyard.services.common.extras import installed_extras
from switchyard.services.common.files.errors import DiskFull, StorageUnavailable
from switchyard.services.common.files.storage import Storage, directory_of
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import Registry, RegistryError
from switchyard.services.engine.monitoring.check import (
    Diagnostic,
    Finding,
    failure,
    first_few,
    ok,
    warning,
)
from switchyard.services.engine.monitoring.checks.doctor_context import ROOM_FIRST, DoctorContext
from switchyard.services.engine.records.errors import LedgerFull
from switchyard.services.engine.records.system import MIN_KEY_LENGTH
from switchyard.services.engine.wings import job_modules, load_wings, missing_wings_hint

PREFIX = str(Settings.model_config["env_prefix"])
MIB = 1024 * 1024
FULL_BELOW_BYTES = 16 * MIB
"""Free bytes below which a disk counts as full: a ledger's log alone may grow by that much."""
LOW_BELOW_BYTES, LOW_BELOW_FRACTION = 10 * 1024 * MIB, 0.1
"""A disk counts as nearly full where its free space is below both, in bytes and as a fraction of
the disk."""
STORAGE_TIMEOUT, MEASURE_TIMEOUT = 2.0, 5.0
"""Seconds for storing one file, and for measuring all files."""
QUOTA_NEAR = 0.9
"""Fraction of the quota from which the doctor warns."""


async def variables(context: DoctorContext) -> list[Diagnostic]:
    """Check the environment for settings that do not exist: a misspelt name is ignored, and the
    default used."""
    variables = [f"{PREFIX}{name.upper()}" for name in type(context.settings).model_fields]
    unknown = sorted(
        name for name in os.environ if name.startswith(PREFIX) and name not in variables
    )
    if not unknown:
        return []
    corrections = []
    for name in unknown:
        similar = get_close_matches(name, variables, 1)
        corrections.append(f"{name} is no setting" + (f": {similar[0]}?" if similar else ""))
    remedy = "correct or remove it: docs/settings.md lists all"
    return [warning("settings", Finding.SETTING_UNKNOWN, first_few(corrections), remedy)]


async def disk(context: DoctorContext) -> list[Diagnostic]:
    """Check the disk space for ledger, files and index, where these are on this host."""
    diagnostics = []
    for directories in _directories_by_disk(data_directories(context.settings)):
        usage = shutil.disk_usage(directories[0])
        names = " and ".join(map(str, directories))
        left = f"{usage.free / MIB:,.0f} MiB are left of {usage.total / MIB:,.0f} at {names}"
        quoted = " ".join(shlex.quote(str(each)) for each in directories)
        remedy = f"make room there: `df -h {quoted}`, `du -xh -d 2 {quoted} | sort -h | tail`"
        if usage.free < FULL_BELOW_BYTES:
            diagnostics.append(failure("disk", Finding.DISK_FULL, left, remedy))
        elif usage.free < LOW_BELOW_BYTES and usage.free < LOW_BELOW_FRACTION * usage.total:
            diagnostics.append(warning("disk", Finding.DISK_LOW, left, remedy))
    return diagnostics or [ok("disk", "there is room for ledger, files and index")]


def _directories_by_disk(directories: Iterable[Path]) -> list[list[Path]]:
    """Return the directories of each disk, without those that lie in another of them."""
    by_disk: dict[int, list[Path]] = {}
    for directory in sorted({each.resolve() for each in directories}):
        own = by_disk.setdefault(directory.stat().st_dev, [])
        if not any(directory.is_relative_to(each) for each in own):
            own.append(directory)
    return list(by_disk.values())


def require_room_for_ledger(settings: Settings) -> None:
    """Raise LedgerFull where the ledger is a file on this host whose disk counts as full. A small
    write would not show that, as it goes into space that the ledger's log already has."""
    directory = _ledger_directory(settings)
    if (
        directory is not None
        and (free := shutil.disk_usage(_nearest_existing(directory)).free) < FULL_BELOW_BYTES
    ):
        raise LedgerFull(f"{free / MIB:,.0f} MiB are left at {directory}")


def data_directories(settings: Settings) -> list[Path]:
    """Return the directories of ledger, files and index on this host; for one that is missing, the
    nearest existing one above it."""
    directories = (
        _ledger_directory(settings),
        directory_of(settings.files_url),
        directory_of(settings.vectors_url),
    )
    return [_nearest_existing(each) for each in directories if each is not None]


def _ledger_directory(settings: Settings) -> Path | None:
    url = settings.ledger_url
    return Path(url.partition(":///")[2]).parent if url.startswith("sqlite") else None


def _nearest_existing(path: Path) -> Path:
    """Return the directory, or the nearest existing one above it."""
    return next(each for each in (path, *path.absolute().parents) if each.is_dir())


async def storage(context: DoctorContext) -> list[Diagnostic]:
    """Check that the storage takes a file, and how much of its quota is used."""
    store, key = Storage(context.settings.files_url), f"health/doctor-{os.getpid()}"
    try:
        async with asyncio.timeout(STORAGE_TIMEOUT):
            await store.put_async(key, b"ok")
            await store.delete_async(key)
    except Exception as error:  # whatever it is, uploads and outputs can't be stored
        reason = str(error) or type(error).__name__
        if isinstance(error, TimeoutError):
            reason = f"it has not answered within {STORAGE_TIMEOUT:g} s"
        detail = f"the storage takes no file: {reason}"
        user = os.environ.get("USER", "this user")
        remedy = f"see JOBS_STORAGE_URL: is it right, has it room, may {user} write there?"
        if isinstance(error, DiskFull) and Finding.DISK_FULL in context.found:
            remedy = f"{ROOM_FIRST}; it goes on by itself"
        return [failure("storage", Finding.STORAGE_AWAY, " ".join(detail.split())[:300], remedy)]
    return [await _within_quota(store, context.settings.storage_quota)]


async def _within_quota(store: Storage, quota: int | None) -> Diagnostic:
    """Tell whether the quota still allows uploads. A storage that can't be measured in time
    counts as within it."""
    used = 0
    if quota is not None:
        with suppress(TimeoutError, StorageUnavailable):
            async with asyncio.timeout(MEASURE_TIMEOUT):
                used = await store.size_async()
    if quota is None or used < QUOTA_NEAR * quota:
        return ok("storage", "it takes files")
    detail = f"it holds {used:,} of the {quota:,} bytes of JOBS_STORAGE_QUOTA"
    remedy = "raise JOBS_STORAGE_QUOTA, or remove files: docs/storage.md#quota"
    if used < quota:
        return warning("storage", Finding.QUOTA_NEAR, detail, remedy)
    return failure("storage", Finding.QUOTA_FULL, f"{detail}: uploads are refused", remedy)


async def readable(context: DoctorContext) -> list[Diagnostic]:
    """Check whether other users of this host can read the ledger, with all payloads and results."""
    url = context.settings.ledger_url
    if not url.startswith("sqlite"):
        return []
    path = Path(url.partition(":///")[2])
    if not _is_open_to_all(path):
        return []
    detail = f"every user of this host can read the ledger, {path}"
    remedy = f"`chmod go-rwx {path.parent}`, or only `chmod go-rwx {path}`"
    return [warning("permissions", Finding.FILES_READABLE, detail, remedy)]


def _is_open_to_all(path: Path) -> bool:
    """Tell whether the file exists, and every user may read it and enter the directories above
    it."""
    if not path.is_file():
        return False
    passable = all(each.stat().st_mode & stat.S_IXOTH for each in path.absolute().parents)
    return passable and bool(path.stat().st_mode & stat.S_IROTH)


async def keys(context: DoctorContext) -> list[Diagnostic]:
    """Check JOBS_API_KEYS for short keys, which can be guessed; those of `jobctl keys` are
    random."""
    setting = context.settings.api_keys
    key_list = [] if setting is None else setting.get_secret_value().split(",")
    short = [each for each in key_list if 0 < len(each.partition(":")[0].strip()) < MIN_KEY_LENGTH]
    if not short:
        return []
    count = pluralize(len(short), "key")
    detail = f"{count} in JOBS_API_KEYS with fewer than {MIN_KEY_LENGTH} characters"
    remedy = "make better ones: `jobctl keys create NAME --scope read`"
    return [warning("keys", Finding.KEY_WEAK, first_few([detail]), remedy)]


def load_types(
    settings: Settings, include: Iterable[str] = ()
) -> tuple[Registry, list[Diagnostic]]:
    """Return the job types of all modules that can be loaded; and diagnostics of the wings, the
    extras, and the modules that can't be loaded."""
    loaded: list[str] = list(job_modules())
    registry = Registry.load(loaded)
    checks = [wings(), extras()]
    for name in dict.fromkeys((*settings.modules, *include)):
        try:
            registry = Registry.load([*loaded, name])
        except RegistryError as error:
            remedy = (
                f"`python -c 'import {name}'` says why; correct JOBS_MODULES, or install the "
                "module, or be in its directory"
            )
            checks.append(failure("modules", Finding.MODULE_MISSING, str(error), remedy))
        else:
            loaded.append(name)
    return registry, checks


def wings() -> Diagnostic:
    """Return which wings are installed here, and how to install the others."""
    return ok("wings", ", ".join(wing.name for wing in load_wings()) + missing_wings_hint())


def extras() -> Diagnostic:
    """Return which extras are installed here, and how to install the others."""
    installed = installed_extras()
    missing = ",".join(extra for extra, is_there in installed.items() if not is_there)
    hint = f"; not installed here: `pip install 'switchyard[{missing}]'`" if missing else ""
    present = ", ".join(extra for extra, is_there in installed.items() if is_there)
    return ok("extras", (present or "none") + hint)
