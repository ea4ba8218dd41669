"""Uploads count against the storage quota while they are received."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from switchyard.services.common.files import storage_quota
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_quota import Quota, StorageFull


async def receive(*sizes: int) -> AsyncIterator[bytes]:
    for size in sizes:
        yield bytes(size)


async def test_a_running_upload_counts_after_the_storage_was_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(storage_quota, "MEASURE_INTERVAL", -1.0)
    storage = Storage(tmp_path.as_uri())
    quota = Quota(storage, 1_000)
    await quota.check()
    upload = quota.metered(receive(900, 50))
    await anext(upload)
    await quota.check()
    with pytest.raises(StorageFull):
        async for _ in quota.metered(receive(200)):
            pass
    await upload.aclose()  # the client disconnected
    await storage.put_async("uploads/other", bytes(950))
    await quota.check()
    with pytest.raises(StorageFull):
        async for _ in quota.metered(receive(100)):
            pass
