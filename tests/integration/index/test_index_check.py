"""The doctor's check of the index."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import SecretStr

from switchyard.services.common.settings import Settings
from switchyard.services.engine.identity.postgres import is_postgres
from switchyard.services.engine.identity.storage_identity import MARKER
from switchyard.services.engine.monitoring.check import Finding
from switchyard.services.pipeline.index import index_check, lance_store
from switchyard.services.pipeline.index.open_index import open_index


async def test_only_an_index_on_a_server_is_reported_as_late(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    """A directory's library took longer to load than a server may take to answer, in a container
    on a busy machine, and the doctor called the index away."""
    settings = Settings(index_url=SecretStr(url), embed_offline="hashed")
    async with open_index(settings) as index, index.open_active():
        monkeypatch.setattr(index_check, "TIMEOUT", 0.0)
        (check,) = await index_check.check_index(settings)
    expected = ("wrong", Finding.INDEX_AWAY) if is_postgres(url) else ("ok", None)
    assert (check.status, check.finding) == expected


async def test_an_index_with_only_the_marker_of_its_system_is_empty(tmp_path: Path):
    """Every process of a system writes the marker into the index when it starts."""
    settings = Settings(data_dir=tmp_path, embed_offline="hashed")
    directory = Path(settings.vectors_url)
    directory.mkdir()
    (directory / MARKER).touch()
    (check,) = await index_check.check_index(settings)
    assert (check.status, check.detail) == ("ok", "nothing has been indexed yet")


@pytest.mark.parametrize(("configured", "expected"), [(None, "error"), ("info", "info")])
def test_lancedb_s_warnings_are_not_logged(
    monkeypatch: pytest.MonkeyPatch, configured: str | None, expected: str
):
    monkeypatch.setenv("LANCEDB_LOG", configured or "")
    if configured is None:
        monkeypatch.delenv("LANCEDB_LOG")
    lance_store._import_lancedb()
    assert os.environ["LANCEDB_LOG"] == expected
