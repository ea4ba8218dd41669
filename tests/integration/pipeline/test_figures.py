"""Figures are cut out, described by a vision model, stored, and found by search."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymupdf
import pytest
from PIL import Image

from switchyard.services.common.errors import RetryableError
from switchyard.services.common.files.errors import UnsupportedDocument
from switchyard.services.common.files.storage_keys import figures_key
from switchyard.services.engine.jobs.outcomes import Next
from switchyard.services.llm.vision_model import VisionNotSet
from switchyard.services.pipeline.samples.generated_samples import generate
from switchyard.services.pipeline.text import figures
from switchyard.services.pipeline.text.figures import NoSuchPage
from switchyard.services.pipeline.workers import figures as figures_worker
from switchyard.services.pipeline.workers.figures import NoPictureAccepted, NoSuchFigure
from switchyard.services.pipeline.workers.stage_outputs import DocumentFiles
from tests.integration.pipeline.conftest import Pipeline
from tests.integration.pipeline.documents import (
    count_chunks,
    find_hits,
    get_document,
    ingest_file,
    run_failing_beside_another,
)
from tests.support import llm_server
from tests.support.llm_server import FakeLlmServer
from tests.support.site import Request

DESCRIPTION = "A zeppelin hovers above two bars of a chart."


@pytest.fixture
def vision_pipeline(pipeline: Pipeline, llm: FakeLlmServer) -> Pipeline:
    llm.always(llm_server.answers(DESCRIPTION))
    update = {"vision_base_url": llm.url, "vision_model": "eyes", "llm_timeout": 5.0}
    return replace(pipeline, settings=pipeline.settings.model_copy(update=update))


def make_sample_with_figures(seed: int = 1):
    return next(generate(1, seed=seed, kinds=["figures"], languages=["en"]))


def read_stored_figures(pipeline: Pipeline, document_id: str) -> list[dict[str, Any]]:
    return list(json.loads(pipeline.storage.get(figures_key(document_id)))["figures"])


def open_sent_picture(request: Request) -> Image.Image:
    url = request.json["messages"][1]["content"][1]["image_url"]["url"]
    return Image.open(io.BytesIO(base64.b64decode(url.partition("base64,")[2])))


async def test_figures_are_cut_out_described_and_found(
    vision_pipeline: Pipeline, llm: FakeLlmServer, tmp_path: Path
):
    sample = make_sample_with_figures()
    document_id = await ingest_file(vision_pipeline, tmp_path, sample.filename, sample.content)
    text_chunks = await count_chunks(vision_pipeline, document_id)
    job_types = await vision_pipeline.run(
        "describe_figures", {"document_id": document_id}, lane="vlm_ocr"
    )
    assert job_types == ["describe_figures", "embed_content", "classify_document", "link_content"]
    stored = read_stored_figures(vision_pipeline, document_id)
    captions = [block.text for block in sample.blocks if block.kind == "caption"]
    assert [each["caption"] for each in stored] == captions
    assert {each["description"] for each in stored} == {DESCRIPTION}
    for each in stored:
        picture = Image.open(io.BytesIO(vision_pipeline.storage.get(each["key"])))
        assert (picture.width, picture.height) == (each["width"], each["height"])
        assert picture.format == {"image/png": "PNG", "image/jpeg": "JPEG"}[each["media_type"]]
    sizes_by_question = {
        request.json["messages"][1]["content"][0]["text"]: open_sent_picture(request).size
        for request in llm.requests
    }
    for each in stored:
        size = next(
            size for question, size in sizes_by_question.items() if each["caption"] in question
        )
        assert size == (each["width"], each["height"])
    assert await count_chunks(vision_pipeline, document_id) == text_chunks + len(stored)
    hits = await find_hits(vision_pipeline, "zeppelin")
    assert hits[0].document_id == document_id
    assert (await get_document(vision_pipeline, document_id)).state == "completed"


async def test_an_equal_picture_is_paid_for_once(
    vision_pipeline: Pipeline, llm: FakeLlmServer, tmp_path: Path
):
    sample = make_sample_with_figures()
    document_id = await ingest_file(vision_pipeline, tmp_path, sample.filename, sample.content)
    await vision_pipeline.run("describe_figures", {"document_id": document_id}, lane="vlm_ocr")
    request_count = len(llm.requests)
    await vision_pipeline.run("describe_figures", {"document_id": document_id, "force": True})
    assert (
        len(llm.requests) == request_count == len(read_stored_figures(vision_pipeline, document_id))
    )
    await vision_pipeline.run("describe_figures", {"document_id": document_id})
    assert vision_pipeline.result("describe_figures")["reused"] is True
    assert vision_pipeline.result("embed_content")["reused"] is True


async def test_stored_pictures_stay_until_new_ones_are_described(
    vision_pipeline: Pipeline, llm: FakeLlmServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sample = make_sample_with_figures()
    document_id = await ingest_file(vision_pipeline, tmp_path, sample.filename, sample.content)
    await vision_pipeline.run("describe_figures", {"document_id": document_id})
    before = read_stored_figures(vision_pipeline, document_id)
    pictures = [vision_pipeline.storage.get(each["key"]) for each in before]
    assert len(set(pictures)) > 1
    cut_pictures = figures.cut

    def cut_differently(original: Any) -> figures.CutPictures:
        first, *rest = cut_pictures(original).pictures
        return figures.CutPictures([*rest, replace(first, caption="Not asked about yet.")], {})

    monkeypatch.setattr(figures, "cut", cut_differently)
    monkeypatch.setattr(figures_worker, "_MAX_CONCURRENT_ANSWERS", 1)
    llm.always(llm_server.fails(500))
    with pytest.raises(RetryableError):
        await vision_pipeline.run_job(
            "describe_figures", {"document_id": document_id, "force": True}
        )
    assert read_stored_figures(vision_pipeline, document_id) == before
    assert [vision_pipeline.storage.get(each["key"]) for each in before] == pictures


async def test_two_jobs_that_cut_a_document_differently_keep_each_other_s_pictures(
    vision_pipeline: Pipeline, llm: FakeLlmServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sample = make_sample_with_figures()
    document_id = await ingest_file(vision_pipeline, tmp_path, sample.filename, sample.content)
    payload = {"document_id": document_id, "force": True}
    await vision_pipeline.run("describe_figures", payload)
    cut_pictures, put_figures = figures.cut, DocumentFiles.put_figures

    def cut_differently(original: Any) -> figures.CutPictures:
        first = cut_pictures(original).pictures[0]
        return figures.CutPictures([replace(first, content=first.content + b" ")], {})

    async def put_after_another_job(files: DocumentFiles, *args: Any) -> None:
        with monkeypatch.context() as unpatched:
            unpatched.setattr(DocumentFiles, "put_figures", put_figures)
            unpatched.setattr(figures, "cut", cut_differently)
            await vision_pipeline.run_job("describe_figures", payload)
        await put_figures(files, *args)

    monkeypatch.setattr(DocumentFiles, "put_figures", put_after_another_job)
    await vision_pipeline.run_job("describe_figures", payload)
    named_keys = {each["key"] for each in read_stored_figures(vision_pipeline, document_id)}
    folder = vision_pipeline.storage.list_async(f"results/{document_id}/figures")
    assert named_keys < {stored.key async for stored in folder}


async def test_a_picture_that_is_gone_is_cut_out_again(
    vision_pipeline: Pipeline, llm: FakeLlmServer, tmp_path: Path
):
    sample = make_sample_with_figures()
    document_id = await ingest_file(vision_pipeline, tmp_path, sample.filename, sample.content)
    await vision_pipeline.run("describe_figures", {"document_id": document_id})
    request_count = len(llm.requests)
    picture_key = read_stored_figures(vision_pipeline, document_id)[0]["key"]
    vision_pipeline.storage.delete(picture_key)
    await vision_pipeline.run("describe_figures", {"document_id": document_id})
    assert vision_pipeline.storage.get(picture_key)
    assert len(llm.requests) == request_count


async def test_tables_are_distinguished_from_figures(vision_pipeline: Pipeline, tmp_path: Path):
    sample = next(generate(1, seed=1, kinds=["tables"], languages=["en"]))
    document_id = await ingest_file(vision_pipeline, tmp_path, sample.filename, sample.content)
    await vision_pipeline.run("describe_figures", {"document_id": document_id})
    stored = read_stored_figures(vision_pipeline, document_id)
    assert {each["kind"] for each in stored} == {"table"}
    assert stored[0]["caption"].startswith("Table 1.")


async def test_the_error_without_a_model_names_the_setting(pipeline: Pipeline, tmp_path: Path):
    sample = make_sample_with_figures()
    document_id = await ingest_file(pipeline, tmp_path, sample.filename, sample.content)
    for job_type in ("describe_figures", "analyze_image"):
        with pytest.raises(VisionNotSet, match="JOBS_VISION_MODEL"):
            await pipeline.run_job(job_type, {"document_id": document_id})


async def test_an_unreachable_model_is_asked_again_later(
    vision_pipeline: Pipeline, llm: FakeLlmServer, tmp_path: Path
):
    sample = make_sample_with_figures()
    document_id = await ingest_file(vision_pipeline, tmp_path, sample.filename, sample.content)
    llm.always(llm_server.fails(500))
    with pytest.raises(RetryableError):
        await vision_pipeline.run_job("describe_figures", {"document_id": document_id})
    assert not await vision_pipeline.storage.exists_async(figures_key(document_id))


async def test_an_answer_under_way_is_kept_although_another_picture_fails(
    vision_pipeline: Pipeline, llm: FakeLlmServer, tmp_path: Path
):
    sample = make_sample_with_figures()
    document_id = await ingest_file(vision_pipeline, tmp_path, sample.filename, sample.content)
    job = vision_pipeline.run_job("describe_figures", {"document_id": document_id})
    with pytest.raises(RetryableError):
        await run_failing_beside_another(llm, llm_server.answers(DESCRIPTION), job)
    request_count = len(llm.requests)
    await vision_pipeline.run("describe_figures", {"document_id": document_id})
    assert len(llm.requests) == request_count + 1


async def test_a_picture_that_the_model_declines_does_not_hold_up_the_others(
    vision_pipeline: Pipeline, llm: FakeLlmServer, tmp_path: Path
):
    sample = make_sample_with_figures()
    document_id = await ingest_file(vision_pipeline, tmp_path, sample.filename, sample.content)
    llm.next(llm_server.answers("", finish_reason="content_filter"))
    await vision_pipeline.run("describe_figures", {"document_id": document_id})
    described = read_stored_figures(vision_pipeline, document_id)
    assert sorted({each["description"] for each in described}) == ["", DESCRIPTION]
    assert ["content filter" in each.get("refused", "") for each in described].count(True) == 1


async def test_the_error_says_that_the_model_takes_no_pictures(
    vision_pipeline: Pipeline, llm: FakeLlmServer, tmp_path: Path
):
    sample = make_sample_with_figures()
    document_id = await ingest_file(vision_pipeline, tmp_path, sample.filename, sample.content)
    llm.always(llm_server.fails(400, "no image input"))
    with pytest.raises(NoPictureAccepted, match="no image input"):
        await vision_pipeline.run_job("describe_figures", {"document_id": document_id})


@pytest.mark.parametrize("extractor", ["pymupdf", "pypdfium2"])
async def test_the_error_names_a_page_that_does_not_exist(
    vision_pipeline: Pipeline, tmp_path: Path, extractor: str
):
    settings = vision_pipeline.settings.model_copy(update={"pdf_extractor": extractor})
    other_pipeline = replace(vision_pipeline, settings=settings)
    sample = make_sample_with_figures()
    document_id = await ingest_file(other_pipeline, tmp_path, sample.filename, sample.content)
    with pytest.raises(NoSuchPage, match=r"no page 99: it has \d"):
        await other_pipeline.run_job("analyze_image", {"document_id": document_id, "page": 99})


async def test_figures_beyond_the_time_budget_are_left_to_another_job(
    vision_pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sample = make_sample_with_figures()
    document_id = await ingest_file(vision_pipeline, tmp_path, sample.filename, sample.content)
    monkeypatch.setattr(figures_worker, "TIME_BUDGET", -1.0)
    outcome = await vision_pipeline.run_job("describe_figures", {"document_id": document_id})
    assert isinstance(outcome, Next)
    assert [job.job_type for job in outcome.jobs] == ["describe_figures"]


async def test_a_page_or_a_figure_is_asked_about(
    vision_pipeline: Pipeline, llm: FakeLlmServer, tmp_path: Path
):
    sample = make_sample_with_figures()
    document_id = await ingest_file(vision_pipeline, tmp_path, sample.filename, sample.content)
    payload = {"document_id": document_id, "question": "How many bars are there?"}
    outcome = await vision_pipeline.run_job("analyze_image", payload)
    assert outcome.result["description"] == DESCRIPTION  # type: ignore[union-attr]
    assert "How many bars" in llm.requests[-1].json["messages"][1]["content"][0]["text"]
    assert max(open_sent_picture(llm.requests[-1]).size) == 1_500
    with pytest.raises(NoSuchFigure, match="has no figure 1: 0 were cut out"):
        await vision_pipeline.run_job("analyze_image", {**payload, "figure": 1})
    await vision_pipeline.run("describe_figures", {"document_id": document_id})
    outcome = await vision_pipeline.run_job("analyze_image", {**payload, "figure": 1})
    assert outcome.result["figure"] == 1  # type: ignore[union-attr]


async def test_plain_text_has_no_figures(vision_pipeline: Pipeline, tmp_path: Path):
    document_id = await ingest_file(vision_pipeline, tmp_path, "a.txt", b"Just text.")
    with pytest.raises(UnsupportedDocument, match="no figures"):
        await vision_pipeline.run_job("describe_figures", {"document_id": document_id})


async def test_a_drawing_of_thousands_of_lines_is_no_figure(
    vision_pipeline: Pipeline, tmp_path: Path
):
    document = pymupdf.open()
    page = document.new_page()
    shape = page.new_shape()
    for number in range(6_000):
        shape.draw_line((50 + number % 400, 50), (60, 90 + number % 300))
        shape.finish(width=0.1 + number % 7)
    shape.commit()
    page.insert_text((50, 700), "A map of many lines.")
    document_id = await ingest_file(vision_pipeline, tmp_path, "map.pdf", bytes(document.tobytes()))
    await vision_pipeline.run("describe_figures", {"document_id": document_id})
    assert read_stored_figures(vision_pipeline, document_id) == []


def test_a_picture_outside_of_the_page_is_left_out_and_the_others_are_cut():
    document = pymupdf.open()
    page = document.new_page()
    pixmap = pymupdf.Pixmap(pymupdf.csRGB, pymupdf.IRect(0, 0, 80, 80))
    for x in (page.rect.width + 100, 100):
        page.insert_image(pymupdf.Rect(x, 100, x + 200, 300), pixmap=pixmap)
    pictures = figures._cut_pdf(bytes(document.tobytes())).pictures
    assert [(each.page, each.kind) for each in pictures] == [(1, "figure")]
