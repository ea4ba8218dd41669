"""Generated documents: many kinds and languages, the same for a seed, with their true text."""

from __future__ import annotations

import subprocess
import sys
from itertools import cycle

import pymupdf
import pytest

from switchyard.services.common.files.media_types import media_type_of
from switchyard.services.common.files.storage_keys import content_hash
from switchyard.services.pipeline.samples.generated_samples import UnknownSample, generate, kinds
from switchyard.services.pipeline.samples.phrases import languages
from switchyard.services.pipeline.text.pdf import read_pdf
from switchyard.services.pipeline.text.plain_text import words


def generate_one(kind: str, language: str = "en", seed: int = 1):
    return next(generate(1, seed=seed, kinds=[kind], languages=[language]))


KINDS = ("text", "report", "paper", "letter")
KINDS_BY_LANGUAGE = zip(cycle(KINDS), languages(), strict=False)


@pytest.mark.parametrize(
    ("kind", "language"), [*KINDS_BY_LANGUAGE, *((kind, "en") for kind in KINDS if kind != "text")]
)
def test_a_document_has_the_words_of_its_true_text(kind: str, language: str):
    """Each kind is tested in English, and each language once."""
    sample = generate_one(kind, language)
    words_read = {word for page in read_pdf(sample.content).pages for word in words(page.text)}
    truth = {word for block in sample.blocks for word in words(block.text)}
    assert len(truth - words_read) <= 0.01 * len(truth), truth - words_read


def test_a_seed_gives_the_same_bytes_in_every_run():
    program = (
        "from switchyard.services.pipeline.samples.generated_samples import generate\n"
        "from switchyard.services.common.files.storage_keys import content_hash\n"
        "print([(s.filename, content_hash(s.content)) for s in generate(12, seed=7)])"
    )
    other_process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    expected = [(each.filename, content_hash(each.content)) for each in generate(12, seed=7)]
    assert other_process.stdout.strip() == str(expected)


def test_the_nth_document_is_the_same_however_many_are_made():
    few = [sample.content for sample in generate(3, seed=4, kinds=["text", "letter"])]
    many = [sample.content for sample in generate(6, seed=4, kinds=["text", "letter"])]
    assert many[:3] == few
    other_seed = [sample.content for sample in generate(3, seed=5, kinds=["text", "letter"])]
    assert not set(few) & set(other_seed)


def test_kinds_and_languages_come_in_turn():
    samples = list(generate(len(kinds()), seed=1))
    assert {sample.kind for sample in samples} == set(kinds())
    assert len({sample.language for sample in samples}) == len(languages())
    assert len({sample.filename for sample in samples}) == len(samples)


def test_scans_and_images_have_no_text():
    scan, image = generate_one("scan"), generate_one("image")
    assert read_pdf(scan.content).needs_ocr
    assert media_type_of(image.content, image.filename) == "image/jpeg"
    assert any(block.text for block in scan.blocks)


def test_a_table_continues_on_the_next_page_with_its_header():
    tables = [block for block in generate_one("tables").blocks if block.kind == "table"]
    continued = [block for block in tables if block.continued]
    assert continued
    previous = tables[tables.index(continued[0]) - 1]
    assert continued[0].page > previous.page
    assert continued[0].rows[0] == previous.rows[0]


def test_a_paper_has_two_columns_with_broken_words_and_references():
    sample = generate_one("paper")
    assert any(block.kind == "reference" for block in sample.blocks)
    with pymupdf.open(stream=sample.content, filetype="pdf") as document:
        lines = document[0].get_text().splitlines()
        left_edges = {round(block[0]) for block in document[0].get_text("blocks")}
    assert any(line.endswith("-") for line in lines)
    assert len({left // 200 for left in left_edges}) == 2


def test_hebrew_reads_from_right_to_left():
    sample = generate_one("text", "he")
    with pymupdf.open(stream=sample.content, filetype="pdf") as document:
        first_block = document[0].get_text("blocks")[0]
    assert first_block[2] > 500  # it ends at the right margin


def test_running_heads_are_no_part_of_the_text():
    sample = generate_one("report")
    assert {block.kind for block in sample.furniture} == {"header", "footer"}
    assert not any(block.kind in ("header", "footer") for block in sample.blocks)


def test_unknown_kinds_and_languages_are_named():
    with pytest.raises(UnknownSample, match="no kind 'poem': use text"):
        generate(1, kinds=["poem"])
    with pytest.raises(UnknownSample, match="no language 'xx': use en"):
        generate(1, languages=["xx"])
