"""The sample documents are the same each time, and readable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from switchyard.services.common.files.storage_keys import content_hash
from switchyard.services.pipeline.samples.article_texts import ARTICLES
from switchyard.services.pipeline.samples.articles import sample, samples, write_samples
from switchyard.services.pipeline.text.pdf import read_pdf
from switchyard.services.pipeline.text.plain_text import words


@pytest.mark.parametrize("number", range(len(ARTICLES)))
def test_a_sample_says_what_its_article_says(number: int):
    article_sample = sample(number)
    document = read_pdf(article_sample.content)
    assert document.title == article_sample.title == ARTICLES[number].title
    words_read = {word for page in document.pages for word in words(page.text)}
    assert set(words(ARTICLES[number].text)) <= words_read
    assert len(document.pages) == 2


def test_samples_have_the_same_bytes_in_every_run():
    program = (
        "from switchyard.services.pipeline.samples.articles import samples\n"
        "from switchyard.services.common.files.storage_keys import content_hash\n"
        "print([content_hash(each.content) for each in samples()])"
    )
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == str([content_hash(each.content) for each in samples()])


def test_any_number_of_different_samples_can_be_made():
    many_samples = list(samples(20))
    assert len({each.content for each in many_samples}) == 20
    assert len({each.filename for each in many_samples}) == 20
    assert many_samples[8].title == f"{ARTICLES[0].title}, edition 2"


def test_samples_are_written_as_files(tmp_path: Path):
    paths = write_samples(tmp_path / "new", 3)
    assert [path.name for path in paths] == [each.filename for each in samples(3)]
    assert paths[0].read_bytes() == sample(0).content


def test_there_is_no_sample_below_zero():
    with pytest.raises(ValueError, match="from 0"):
        sample(-1)
