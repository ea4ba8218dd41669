"""What is made of documents: vectors, classes, text, references, the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings

from switchyard.broker import patterns
from switchyard.services.common.settings.value_types import Listed


class DocumentSettings(BaseSettings, defer_build=True):
    """Documents: vectors, classes, text, references and graph."""

    embed_dimensions: int = Field(
        default=256,
        ge=8,
        le=4096,
        description="Dimensions of the vectors; at most 256 for `wordllama`, 384 for `minilm`. "
        "After a change run `jobctl index rebuild`.",
    )
    embed_base_url: str | None = Field(
        default=None,
        description="Address of an OpenAI-compatible server with an embedding model. Without "
        "one, JOBS_EMBED_OFFLINE is used. After a change run `jobctl index "
        "rebuild`.",
    )
    embed_offline: str = Field(
        default="wordllama",
        pattern=patterns.EMBEDDER,
        max_length=4000,
        description="Embedder without a server: `wordllama` compares meaning and is best for "
        "English; `hashed` compares words, in any script; `minilm` is all-MiniLM-L6-v2, better and "
        "slower, of the extra `minilm`; or the folder (`/…`) of a sentence model in ONNX or BERT. "
        "After a change run `jobctl index rebuild`.",
    )
    embed_fits: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Minimum similarity of a search hit, for the model of JOBS_EMBED_BASE_URL.",
    )
    embed_alike: float = Field(
        default=0.22,
        ge=-1,
        le=1,
        description="Minimum similarity of linked documents, for the model of JOBS_EMBED_BASE_URL.",
    )
    embed_model: str = Field(default="default", description="Model on JOBS_EMBED_BASE_URL.")
    embed_batch_size: int = Field(
        default=64,
        ge=1,
        le=2048,
        description="Maximum number of texts in one request to JOBS_EMBED_BASE_URL. If the server "
        "refuses that many, fewer are sent.",
    )
    embed_api_key: SecretStr | None = Field(
        default=None, description="API key for JOBS_EMBED_BASE_URL."
    )
    classes: Path | None = Field(
        default=None,
        description="TOML file with the classes of documents (docs/classes.md). Default: the "
        "file of the package.",
    )
    pdf_extractor: Literal["pymupdf", "pypdfium2"] = Field(
        default="pymupdf",
        description="Library that reads PDFs: `pymupdf` (AGPL; repairs more damaged files) or "
        "`pypdfium2` (Apache-2.0, BSD).",
    )
    ocr_scanned_pages: bool = Field(
        default=True,
        description="Whether pages without text in a document with text are sent to OCR if "
        "images cover them. Set it to false if no worker `ocr` runs.",
    )
    ocr_models: Path | None = Field(
        default=None,
        description="Directory with OCR models for other languages, named LANGUAGE.onnx: "
        "PaddleOCR recognition models, converted for RapidOCR, with embedded "
        "character lists.",
    )
    contact: str | None = Field(
        default=None,
        max_length=200,
        pattern=patterns.PRINTABLE,
        description="Your e-mail or web address, sent in the `User-Agent` of requests to "
        "external servers, so that their operators can contact you.",
    )
    document_references: bool = Field(
        default=False,
        description="Whether the references of each document are extracted after its pipeline.",
    )
    reference_engines: Listed[Literal["grobid", "llm", "offline"]] = Field(
        default=("offline",),
        min_length=1,
        description="Parsers of references, comma-separated, in this order: each parses what "
        "the previous one could not. `grobid` needs JOBS_GROBID_URL, `llm` needs "
        "JOBS_LLM_BASE_URL.",
    )
    grobid_url: str | None = Field(
        default=None,
        pattern=patterns.URL,
        description="Address of a GROBID server, for example http://localhost:8070.",
    )
    link_citations: bool = Field(
        default=False,
        description="Whether extracted references are looked up in catalogues and linked to works.",
    )
    link_catalogues: Listed[Literal["openalex", "crossref", "wikidata"]] = Field(
        default=("openalex", "crossref", "wikidata"),
        min_length=1,
        description="Catalogues for references, comma-separated, in this order: each is asked "
        "for what the previous ones do not know.",
    )
    link_interval: float = Field(
        default=0.2,
        ge=0,
        le=3600,
        description="Minimum seconds between two requests to the same catalogue, of all "
        "processes together.",
    )
    link_answers_days: float = Field(
        default=30,
        ge=0,
        le=36_500,
        description="Days that answers of catalogues are stored and reused.",
    )
    openalex_base_url: str = Field(
        default="https://api.openalex.org",
        pattern=patterns.URL,
        description="Address of the OpenAlex API.",
    )
    openalex_api_key: SecretStr | None = Field(
        default=None,
        min_length=1,
        description="Key for the OpenAlex API, from your account there; without one, it answers "
        "few requests a day.",
    )
    crossref_base_url: str = Field(
        default="https://api.crossref.org",
        pattern=patterns.URL,
        description="Address of the Crossref API.",
    )
    wikidata_base_url: str = Field(
        default="https://www.wikidata.org/w/api.php",
        pattern=patterns.URL,
        description="Address of Wikidata's API.",
    )
    graph_memory_mb: int = Field(
        default=4096,
        ge=512,
        description="Memory limit (address space, MiB) of the process that ranks the "
        "knowledge graph. Raise it if `recompute_graph` runs out of memory.",
    )

    @property
    def user_agent(self) -> str:
        """The `User-Agent` header of this system's requests to catalogues and sources."""
        return f"switchyard ({self.contact or 'job system; one request at a time'})"
