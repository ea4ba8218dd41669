"""The doctor's question about the index."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import SecretStr

from switchyard.services.common.settings import Settings
from switchyard.services.engine.identity.postgres import is_postgres
from switchyard.services.engine.identity.storage_identity import MARKER
from switchyard.services.engine.monitoring.check import Finding
from switchyard.services.pipeline.index import index_check
from switchyard.services.pipeline.index import lance_store as lance_home
from switchyard.services.pipeline.index.open_index import open_index


async def test_only_who_has_to_answer_may_be_late(url: str, monkeypatch: pytest.MonkeyPatch):
    """A directory's library took longer to load than a server may take to answer, in a container
    on a busy machine, and the doctor called the index away."""
    settings = Settings(index_url=SecretStr(url), embed_offline="hashed")
    async with open_index(settings) as index, index.open_active():
        monkeypatch.setattr(index_check, "TIMEOUT", 0.0)
        (check,) = await index_check.check_index(settings)
    late = ("wrong", Finding.INDEX_AWAY) if is_postgres(url) else ("ok", None)
    assert (check.status, check.finding) == late


async def test_an_index_that_is_marked_as_a_systems_own_is_empty_still(tmp_path: Path):
    """Every process of a system writes the mark into the index when it starts."""
    settings = Settings(data_dir=tmp_path, embed_offline="hashed")
    directory = Path(settings.vectors_url)
    directory.mkdir()
    (directory / MARKER).touch()
    (check,) = await index_check.check_index(settings)
    assert (check.status, check.detail) == ("ok", "nothing has been indexed yet")


@pytest.mark.parametrize(("said", "then"), [(None, "error"), ("info", "info")])
def test_lancedb_s_warnings_are_not_logged(
    monkeypatch: pytest.MonkeyPatch, said: str | None, then: str
):
    monkeypatch.setenv("LANCEDB_LOG", said or "")
    if said is None:
        monkeypatch.delenv("LANCEDB_LOG")
    lance_home._import_lancedb()
    assert os.environ["LANCEDB_LOG"] == then
