"""An address of each kind of index."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(params=["lancedb", pytest.param("pgvector", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty index; the tests run once for each kind of index."""
    if request.param == "pgvector":
        return request.getfixturevalue("pgvector_url")
    return str(tmp_path / "index")
