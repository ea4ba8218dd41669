"""What is made of documents: vectors, classes, text, references, the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings

from switchyard.services.settings.values import Listed, OrUnset


class DocumentSettings(BaseSettings):
    """What is made of documents: vectors, classes, text, references, the graph."""

    embed_dimensions: int = Field(
        default=256,
        ge=8,
        le=4096,
        description="Length of the embedder's vectors; at most 256 for `wordllama`.",
    )
    embed_base_url: OrUnset[str] = Field(
        default=None,
        description="An OpenAI-compatible server with an embedding model; without one, text is "
        "embedded offline.",
    )
    embed_offline: Literal["wordllama", "hashed"] = Field(
        default="wordllama",
        description="The offline embedder: `wordllama` by meaning, best in English; `hashed` by "
        "wording, in any script.",
    )
    embed_fits: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Least similarity of a passage to a query for vectors of that server's model: "
        "what is below is no hit.",
    )
    embed_alike: float = Field(
        default=0.22,
        ge=-1,
        le=1,
        description="Least similarity at which documents are linked, for vectors of that server's "
        "model.",
    )
    embed_model: str = Field(default="default", description="Model asked for at that server.")
    embed_api_key: OrUnset[SecretStr] = Field(default=None, description="Its API key.")
    classes: OrUnset[Path] = Field(
        default=None,
        description="A TOML file that says how documents are classified; the package's own where "
        "unset (docs/classes.md).",
    )
    pdf_extractor: Literal["pymupdf", "pypdfium2"] = Field(
        default="pymupdf",
        description="What reads PDFs: `pymupdf` (AGPL), which mends more of what is damaged, or "
        "`pypdfium2` (Apache-2.0, BSD).",
    )
    ocr_scanned_pages: bool = Field(
        default=True,
        description="Whether documents that have text go to OCR as well, for those of their pages "
        "that have none and are covered by pictures. Off where no worker does OCR.",
    )
    ocr_models: Path | None = Field(
        default=None,
        description="Directory with models for OCR in other languages, LANGUAGE.onnx each, as "
        "PaddleOCR's recognition models converted for RapidOCR, with their characters inside.",
    )
    contact: OrUnset[str] = Field(
        default=None,
        max_length=200,
        pattern=r"^[\x20-\x7e]*$",
        description="A mail or web address that other people's servers are told in the "
        "`User-Agent`, so that they can reach whoever asks them.",
    )
    document_references: bool = Field(
        default=False,
        description="Whether each document's references are looked for when its pipeline has "
        "ended.",
    )
    reference_engines: Listed[Literal["grobid", "llm", "offline"]] = Field(
        default=("offline",),
        min_length=1,
        description="What cuts references into fields, comma-separated: `grobid`, `llm`, "
        "`offline`; each that follows does what the one before it can't.",
    )
    grobid_url: OrUnset[str] = Field(
        default=None,
        pattern="^https?://",
        description="Address of a GROBID server, for example http://localhost:8070.",
    )
    link_citations: bool = Field(
        default=False,
        description="Whether the references of documents are linked to works when they were found.",
    )
    link_catalogues: Listed[Literal["openalex", "crossref", "wikidata"]] = Field(
        default=("openalex", "crossref", "wikidata"),
        min_length=1,
        description="The catalogues that are asked for references' works, comma-separated: each "
        "that follows for what those before it do not know.",
    )
    link_interval: float = Field(
        default=0.2,
        ge=0,
        le=3600,
        description="Least seconds between two requests to one catalogue, all processes together.",
    )
    link_answers_days: float = Field(
        default=30, ge=0, le=36_500, description="Days for which catalogues' answers are kept."
    )
    openalex_base_url: str = Field(
        default="https://api.openalex.org",
        pattern="^https?://",
        description="Address of OpenAlex.",
    )
    crossref_base_url: str = Field(
        default="https://api.crossref.org",
        pattern="^https?://",
        description="Address of Crossref.",
    )
    wikidata_base_url: str = Field(
        default="https://www.wikidata.org/w/api.php",
        pattern="^https?://",
        description="Address of Wikidata's API.",
    )
    graph_memory_mb: int = Field(
        default=4096,
        ge=512,
        description="MiB of address space of the process that ranks the knowledge graph.",
    )
