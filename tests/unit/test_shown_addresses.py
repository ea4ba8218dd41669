"""Addresses of storage, index and databases are shown without their secrets."""

import pytest

from switchyard.services.engine.identity.postgres import without_credentials
from switchyard.services.pipeline.index.lance_store import LanceStore


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://KEY:SECRET@bucket/index?secret=x", "s3://bucket/index"),
        ("az://bucket/a@b", "az://bucket/a@b"),
        ("postgresql+asyncpg://u:p@host/db?password=x", "postgresql://host/db"),
        ("/srv/index", "/srv/index"),
        ("file:///srv/a@b", "file:///srv/a@b"),
    ],
)
def test_an_address_is_shown_without_its_credentials(url: str, expected: str) -> None:
    assert without_credentials(url) == expected


def test_the_address_of_an_index_shows_no_credentials() -> None:
    store = LanceStore("s3://KEY:SECRET@bucket/index?aws_secret_access_key=SECRET")
    assert store.location == "s3://bucket/index"
