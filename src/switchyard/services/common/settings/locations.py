"""Settings of the locations of ledger, files and index."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode


def default_data_dir() -> Path:
    """Return the directory of ledger, files and index if no address is set: `./.switchyard`."""
    return Path(".switchyard").absolute()


class LocationSettings(BaseSettings, defer_build=True):
    """Ledger, files and search index."""

    data_dir: Path = Field(
        default_factory=default_data_dir,
        description="Directory for ledger, files and index, unless one of the addresses below "
        "is set.",
    )
    database_url: SecretStr | None = Field(
        default=None,
        description="SQLAlchemy address of the ledger: sqlite+aiosqlite:///… or "
        "postgresql+asyncpg://…; with a standby, give all hosts "
        "(docs/cluster.md). Default: a SQLite file in JOBS_DATA_DIR. Only `jobctl "
        "up`, `jobctl demo` and `jobctl db upgrade` create a ledger.",
    )
    application_password: SecretStr | None = Field(
        default=None,
        description="Password that `jobctl db users` sets for the PostgreSQL user of the "
        "processes. Default: a random one. Only this command reads it.",
    )
    reader_password: SecretStr | None = Field(
        default=None, description="The same for the PostgreSQL user that only reads."
    )
    storage_url: str | None = Field(
        default=None,
        description="Address of the file storage: file:///…, s3://… or az://… "
        "(docs/storage.md). Default: JOBS_DATA_DIR.",
    )
    storage_quota: int | None = Field(
        default=None,
        ge=0,
        description="Size of the file storage in bytes above which the API refuses uploads. "
        "Default: no limit.",
    )
    files_kept_hours: float = Field(
        default=24,
        ge=1,
        le=876_000,
        description="Hours after which `cleanup_expired` deletes intermediate files: "
        "processed uploads, inputs of ended backfills, results of jobs without a document, single "
        "pages of long or scanned documents, and answers of external servers.",
    )
    documents_kept_hours: float | None = Field(
        default=None,
        ge=1,
        le=876_000,
        description="Hours after which `cleanup_expired` also deletes originals and texts of "
        "documents. Results and the search index stay. Default: never.",
    )
    max_document_bytes: int = Field(
        default=100 * 1024 * 1024, ge=1, description="Maximum size of a document in bytes."
    )
    ingest_paths: Annotated[tuple[Path, ...] | None, NoDecode] = Field(
        default=None,
        description="Directories from which `ingest_document` may read its `path`, separated "
        "as in PATH (`:`). Unset: any directory. `none`: none. Empty: an error, for it could be "
        "meant as either.",
    )
    index_url: SecretStr | None = Field(
        default=None,
        description="Address of the search index: a directory or an object-store address "
        "(LanceDB), or postgresql://… with pgvector. Default: JOBS_DATA_DIR.",
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_empty_paths(cls, value: object) -> object:
        """Refuse an empty variable. Other empty variables count as unset; for this one, that would
        open every file to any publisher, although the operator may have meant to open none."""
        if os.environ.get("JOBS_INGEST_PATHS") == "":
            raise ValueError(
                "JOBS_INGEST_PATHS is empty: set it to `none`, or remove it to allow any directory"
            )
        return value

    @field_validator("ingest_paths", mode="before")
    @classmethod
    def _split_paths(cls, value: object) -> object:
        if value == "none":
            return ()
        if isinstance(value, str):
            return tuple(Path(part) for part in value.split(os.pathsep) if part)
        return value

    @property
    def ledger_url(self) -> str:
        """The SQLAlchemy address of the ledger."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite+aiosqlite:///{self.ledger_file}"

    @property
    def ledger_file(self) -> Path:
        """The file of the ledger where JOBS_DATABASE_URL is not set."""
        return self.data_dir / "ledger.db"

    @property
    def database_passwords(self) -> dict[str, str]:
        """The configured passwords of the users of the ledger's database, by role."""
        by_role = {"application": self.application_password, "reader": self.reader_password}
        return {role: each.get_secret_value() for role, each in by_role.items() if each}

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
