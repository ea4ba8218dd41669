"""Check this host: the modules of its job types can be loaded, it has room for what is kept on it,
and the storage takes files."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from switchyard.broker.wording import pluralize
from switchyard.services.common.extras import installed_extras
from switchyard.services.common.files.errors import StorageUnavailable
from switchyard.services.common.files.storage import Storage, directory_of
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import Registry, RegistryError
from switchyard.services.engine.monitoring.check import (
    Diagnostic,
    Finding,
    failure,
    ok,
    some,
    warning,
)
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.records.errors import LedgerFull
from switchyard.services.engine.wings import job_modules, load_wings, missing_wings_hint

PREFIX = str(Settings.model_config["env_prefix"])
MIB = 1024 * 1024
FULL_BELOW = 16 * MIB
"""Free bytes below which a disk counts as full: a ledger's log alone may grow by as much."""
LOW, LOW_PART = 10 * 1024 * MIB, 0.1
"""A disk counts as nearly full where less is free than so many bytes and than this fraction of
it."""
STORAGE_TIMEOUT, MEASURE_TIMEOUT = 2.0, 5.0
"""Seconds to put one file, and to count all files."""
QUOTA_NEAR = 0.9
MIN_KEY_LENGTH = 24
"""Characters of a key that nobody guesses."""


async def variables(context: DoctorContext) -> list[Diagnostic]:
    """Settings of this process's environment that there are none of: a name that is misspelt is
    ignored, and its default used."""
    variables = [f"{PREFIX}{name.upper()}" for name in type(context.settings).model_fields]
    unknown = sorted(
        name for name in os.environ if name.startswith(PREFIX) and name not in variables
    )
    if not unknown:
        return []
    corrections = []
    for name in unknown:
        alike = get_close_matches(name, variables, 1)
        corrections.append(f"{name} is no setting" + (f": {alike[0]}?" if alike else ""))
    remedy = "correct or remove it: docs/settings.md lists all"
    return [warning("settings", Finding.SETTING_UNKNOWN, some(corrections), remedy)]


async def disk(context: DoctorContext) -> list[Diagnostic]:
    """Room for ledger, files and index, as far as they lie here."""
    diagnostics = []
    for place in dict.fromkeys(kept_here(context.settings)):
        usage = shutil.disk_usage(place)
        left = f"{usage.free / MIB:,.0f} MiB are left of {usage.total / MIB:,.0f} at {place}"
        remedy = f"make room there: `df -h {place}`, `du -xh -d 2 {place} | sort -h | tail`"
        if usage.free < FULL_BELOW:
            diagnostics.append(failure("disk", Finding.DISK_FULL, left, remedy))
        elif usage.free < LOW and usage.free < LOW_PART * usage.total:
            diagnostics.append(warning("disk", Finding.DISK_LOW, left, remedy))
    return diagnostics or [ok("disk", "there is room for ledger, files and index")]


def require_room_for_ledger(settings: Settings) -> None:
    """Raises LedgerFull where the disk of a ledger that lies on this host counts as full. A small
    write says nothing of that: the ledger's log has room that was its own before."""
    place = _ledger_here(settings)
    if place is not None and (free := shutil.disk_usage(_nearest(place)).free) < FULL_BELOW:
        raise LedgerFull(f"{free / MIB:,.0f} MiB are left at {place}")


def kept_here(settings: Settings) -> list[Path]:
    """Return the directories on this host in which something is kept, as far as they are there."""
    places = (
        _ledger_here(settings),
        directory_of(settings.files_url),
        directory_of(settings.vectors_url),
    )
    return [_nearest(each) for each in places if each is not None]


def _ledger_here(settings: Settings) -> Path | None:
    url = settings.ledger_url
    return Path(url.partition(":///")[2]).parent if url.startswith("sqlite") else None


def _nearest(path: Path) -> Path:
    """Return the directory, or the first above it that there is."""
    return next(each for each in (path, *path.absolute().parents) if each.is_dir())


async def storage(context: DoctorContext) -> list[Diagnostic]:
    """Tell whether it takes a file."""
    store, key = Storage(context.settings.files_url), f"health/doctor-{os.getpid()}"
    try:
        async with asyncio.timeout(STORAGE_TIMEOUT):
            await store.put_async(key, b"ok")
            await store.delete_async(key)
    except Exception as error:  # whatever it is, uploads and outputs can't be kept
        reason = str(error) or type(error).__name__
        if isinstance(error, TimeoutError):
            reason = f"it has not answered within {STORAGE_TIMEOUT:g} s"
        detail = f"the storage takes no file: {reason}"
        user = os.environ.get("USER", "this user")
        remedy = f"see JOBS_STORAGE_URL: is it right, has it room, may {user} write there?"
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
    """Tell whether other users of this host can read the ledger: payloads, results and all."""
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
    """Tell whether there is such a file, anybody may read it, and pass all the directories
    above."""
    if not path.is_file():
        return False
    passable = all(each.stat().st_mode & stat.S_IXOTH for each in path.absolute().parents)
    return passable and bool(path.stat().st_mode & stat.S_IROTH)


async def keys(context: DoctorContext) -> list[Diagnostic]:
    """Keys that somebody has thought of; those of `jobctl keys` are made at random."""
    setting = context.settings.api_keys
    key_list = [] if setting is None else setting.get_secret_value().split(",")
    short = [each for each in key_list if 0 < len(each.partition(":")[0].strip()) < MIN_KEY_LENGTH]
    if not short:
        return []
    count = pluralize(len(short), "key")
    detail = f"{count} in JOBS_API_KEYS with fewer than {MIN_KEY_LENGTH} characters"
    remedy = "make better ones: `jobctl keys create NAME --scope read`"
    return [warning("keys", Finding.KEY_WEAK, some([detail]), remedy)]


def load_types(
    settings: Settings, include: Iterable[str] = ()
) -> tuple[Registry, list[Diagnostic]]:
    """Return the job types of all modules that can be loaded; which wings and extras there are, and
    what is wrong with modules that can't be loaded."""
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
    there = ", ".join(extra for extra, is_there in installed.items() if is_there)
    return ok("extras", (there or "none") + hint)
