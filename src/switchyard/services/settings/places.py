"""Where ledger, files and index lie, and what may lie there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode

from switchyard.services.settings.values import OrUnset


def default_data_dir() -> Path:
    """Where the ledger, files and index lie when no address is set: `./.switchyard`."""
    return Path(".switchyard").absolute()


class PlaceSettings(BaseSettings):
    """Where ledger, files and index lie, and what may lie there."""

    data_dir: Path = Field(
        default_factory=default_data_dir,
        description="Directory of ledger, files and index where no other address is set.",
    )
    database_url: OrUnset[SecretStr] = Field(
        default=None,
        description="SQLAlchemy address of the ledger: sqlite+aiosqlite:///… or "
        "postgresql+asyncpg://…, with several hosts where there is a standby (docs/cluster.md); a "
        "SQLite file in the data directory where unset. Only `jobctl up`, `jobctl demo` and "
        "`jobctl db upgrade` create one.",
    )
    storage_url: OrUnset[str] = Field(
        default=None,
        description="Where files are kept: file:///…, s3://… or az://…; the data directory where "
        "unset.",
    )
    storage_quota: int | None = Field(
        default=None,
        ge=0,
        description="Bytes that the file storage may hold before the API refuses uploads; no "
        "limit where unset.",
    )
    files_kept_hours: float = Field(
        default=24,
        ge=1,
        le=876_000,
        description="Hours for which `cleanup_expired` leaves by-products: uploads that became a "
        "document, results of jobs without one, pages that OCR has read.",
    )
    documents_kept_hours: float | None = Field(
        default=None,
        ge=1,
        le=876_000,
        description="Hours after which it removes originals and texts of documents, too; their "
        "results, and what search finds, stay. Never where unset.",
    )
    max_document_bytes: int = Field(
        default=100 * 1024 * 1024, ge=1, description="Largest file that is taken in, in bytes."
    )
    ingest_paths: Annotated[tuple[Path, ...] | None, NoDecode] = Field(
        default=None,
        description="Directories below which `path` of ingest_document may lie, separated as in "
        "PATH; anywhere where unset, nowhere where empty.",
    )
    index_url: OrUnset[SecretStr] = Field(
        default=None,
        description="Where chunks and vectors are kept: a directory or an object-store address "
        "(LanceDB), or postgresql://… with pgvector; the data directory where unset.",
    )

    @field_validator("ingest_paths", mode="before")
    @classmethod
    def _split_paths(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(Path(part) for part in value.split(os.pathsep) if part)
        return value

    @property
    def ledger_url(self) -> str:
        """The SQLAlchemy address of the ledger."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite+aiosqlite:///{self.data_dir / 'ledger.db'}"

    @property
    def files_url(self) -> str:
        """The address of the file storage."""
        return self.storage_url or (self.data_dir / "files").as_uri()

    @property
    def vectors_url(self) -> str:
        """The address of the vector index."""
        if self.index_url is not None:
            return self.index_url.get_secret_value()
        return str(self.data_dir / "index")
