"""What uploads take of the quota while they come in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from switchyard.services.common.files import storage_quota as quotas
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_quota import Quota, StorageFull


async def parts(*sizes: int) -> AsyncIterator[bytes]:
    for size in sizes:
        yield bytes(size)


async def test_an_upload_under_way_counts_after_the_storage_was_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(quotas, "MEASURE_INTERVAL", -1.0)
    storage = Storage(tmp_path.as_uri())
    quota = Quota(storage, 1_000)
    await quota.check()
    first = quota.metered(parts(900, 50))
    await anext(first)
    await quota.check()
    with pytest.raises(StorageFull):
        async for _ in quota.metered(parts(200)):
            pass
    await first.aclose()  # the sender broke off
    await storage.put_async("uploads/other", bytes(950))
    await quota.check()
    with pytest.raises(StorageFull):
        async for _ in quota.metered(parts(100)):
            pass
