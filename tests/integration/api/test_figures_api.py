"""Figures over HTTP: their descriptions, and the pictures themselves."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_keys import content_hash, figure_key, figures_key
from switchyard.services.common.settings import Settings
from tests.integration.api.document_server import serving

FIGURE = {
    "figure": 1,
    "page": 2,
    "kind": "figure",
    "caption": "Figure 1. Tides",
    "description": "A curve that rises twice.",
    "refused": None,
    "model": "eyes",
    "width": 10,
    "height": 20,
    "media_type": "image/png",
    "size": 8,
}
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", amqp_url=None)


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(settings) as opened:
        key = figure_key("some", content_hash(PNG), "png")
        storage = Storage(settings.files_url)
        stored_figures = {
            "content": "x",
            "figures": [{**FIGURE, "key": key, "answer_reused": False}],
        }
        await storage.put_async(figures_key("some"), json.dumps(stored_figures).encode())
        await storage.put_async(key, PNG)
        yield opened


async def test_figures_are_listed_without_their_keys(client: httpx.AsyncClient):
    answer = await client.get("/documents/some/figures")
    assert answer.json() == {"figures": [FIGURE]}


async def test_a_picture_is_served_with_its_media_type(client: httpx.AsyncClient):
    answer = await client.get("/documents/some/figures/1")
    assert answer.content == PNG
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_the_error_names_what_is_missing(client: httpx.AsyncClient, settings: Settings):
    unknown = await client.get("/documents/unknown/figures")
    assert unknown.status_code == 404
    assert unknown.json()["detail"] == "there is no document unknown"
    sent = await client.post("/documents", files={"file": ("tides.md", b"# Tides\n\nThey rise.")})
    no_figures = await client.get(f"/documents/{sent.json()['document_id']}/figures")
    assert no_figures.status_code == 404
    by_id_prefix = await client.get(f"/documents/{sent.json()['document_id'][:8]}")
    assert by_id_prefix.json()["document_id"] == sent.json()["document_id"]
    assert "vlm_ocr.describe_figures" in no_figures.json()["detail"]
    assert "has no figure 2" in (await client.get("/documents/some/figures/2")).json()["detail"]
    await Storage(settings.files_url).delete_async(figure_key("some", content_hash(PNG), "png"))
    assert (await client.get("/documents/some/figures/1")).status_code == 404
