"""The pipeline's job types are declared as the topology expects them, and cheap to import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from switchyard.services.engine.jobs.registry import InvalidPayload, Registry

HEAVY_LIBRARIES = (
    *("PIL", "cv2", "lancedb", "numpy", "obstore", "onnxruntime", "openai", "pyarrow"),
    *("pycrfsuite", "pymupdf", "rapidocr", "sqlalchemy", "tenacity"),
)


def test_stages_declare_their_worker_kind_lanes_and_isolation():
    """As requirement T3 assigns them."""
    registry = Registry.load()
    declared = {
        job_type.name: (job_type.worker, job_type.lanes, job_type.isolation)
        for job_type in registry
    }
    assert declared == declared | {
        "ingest_document": ("ingest", ("hot", "backfill"), "task"),
        "extract_text": ("ingest", ("hot", "backfill"), "process"),
        "await_ocr": ("ingest", ("hot", "backfill"), "task"),
        "ocr_pdf": ("ocr", ("vlm_ocr",), "task"),
        "describe_figures": ("ocr", ("vlm_ocr",), "task"),
        "analyze_image": ("ocr", ("vlm_ocr",), "task"),
        "ocr_pages": ("ocr", ("vlm_ocr",), "task"),
        "summarize_content": ("llm", ("hot", "backfill"), "task"),
        "embed_content": ("embed", ("hot", "backfill"), "task"),
        "classify_document": ("embed", ("hot", "backfill"), "task"),
        "link_content": ("link", ("hot", "maintenance"), "task"),
        "parse_references": ("link", ("hot", "maintenance"), "task"),
        "process_references": ("link", ("hot", "maintenance"), "task"),
    }
    assert registry.get("extract_text").memory_limit_mb
    assert registry.get("extract_text").timeout == 120
    assert registry.get("summarize_content").timeout == 1200


def test_importing_the_job_types_loads_nothing_heavy():
    program = (
        "import sys; "
        "from switchyard.services.engine.jobs.registry import Registry; Registry.load();"
        f"print([name for name in {HEAVY_LIBRARIES} if name in sys.modules])"
    )
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("job_type", "payload", "message"),
    [
        ("ingest_document", {}, "either path or key"),
        ("ingest_document", {"path": "a", "key": "uploads/incoming/b"}, "either path or key"),
        ("ingest_document", {"path": "a", "colour": "red"}, "colour"),
        ("ingest_document", {"path": "a", "source": ""}, "source"),
        ("extract_text", {}, "document_id"),
        ("extract_text", {"document_id": "../x"}, "document_id"),
        ("ocr_pdf", {"document_id": "a", "language": "../de"}, "language"),
        ("summarize_content", {"document_id": "a", "top_k": 3}, "top_k"),
        ("link_content", {"document_id": "a", "top_k": 0}, "top_k"),
        ("parse_references", {"references": []}, "references"),
        ("parse_references", {"references": ["a"] * 201}, "references"),
        ("parse_references", {"references": ["a" * 5_001]}, "references"),
    ],
)
def test_a_payload_that_does_not_fit_is_refused(job_type: str, payload: dict, message: str):
    with pytest.raises(InvalidPayload, match=message):
        Registry.load().get(job_type).validate(payload)
