"""No key leaves the storage, and impossible keys and addresses are permanent errors."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.services.common.errors import PermanentError
from switchyard.services.common.files.errors import InvalidKey
from switchyard.services.common.files.safe_http import FetchRefused, fetching
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_keys import (
    check_key,
    content_hash,
    extraction_key,
    result_key,
    upload_key,
)
from switchyard.services.common.files.uploads import read_path
from switchyard.services.engine.jobs.retry import Failure


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "/etc/passwd",
        "..",
        "../x",
        "a/../../x",
        "a/./b",
        "a//b",
        "a/",
        ".hidden",
        "a/.hidden",
        "a b",
        "a\\b",
        "a\0b",
        "a\nb",
        "a%2F..%2Fb",
        "a#1",
        "ü",
        "x" * 201,
        "/".join(["x" * 100] * 10),
    ],
)
def test_a_key_that_could_leave_or_is_not_portable_is_refused(key: str):
    with pytest.raises(InvalidKey):
        check_key(key)


@given(st.text())
def test_a_valid_key_has_only_plain_segments(key: str):
    try:
        check_key(key)
    except InvalidKey:
        return
    assert not any(segment in ("", ".", "..") for segment in key.split("/"))


@pytest.mark.parametrize("key", ["a", "uploads/1-2_3/input.pdf", "llm/0a.json", "a:b@c=d+e"])
def test_plain_keys_pass(key: str):
    assert check_key(key) == key


def test_a_storage_can_be_sent_to_another_process():
    storage = Storage("file:///somewhere")
    assert pickle.loads(pickle.dumps(storage)) == storage


def test_keys_of_originals_end_with_their_type():
    assert upload_key("1", "application/pdf") == "uploads/1/input.pdf"
    assert upload_key("1", "text/markdown") == "uploads/1/input.md"
    assert upload_key("1", "text/plain") == "uploads/1/input.txt"


def test_hashes_do_not_depend_on_the_order_of_fields():
    assert content_hash({"a": 1, "b": [2]}) == content_hash({"b": [2], "a": 1})
    assert content_hash({"a": 1}) != content_hash({"a": "1"})


def test_an_invalid_key_is_a_permanent_error():
    assert Failure.from_error(InvalidKey("..")).permanent


def test_a_circle_of_links_is_a_permanent_error(tmp_path: Path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(PermanentError, match="circle"):
        read_path(str(tmp_path / "a"))


@pytest.mark.parametrize("port", [0, 65_536, 99_999])
async def test_an_impossible_port_is_a_permanent_error(port: int):
    with pytest.raises(FetchRefused, match="no port"):
        async with fetching(f"http://example.org:{port}/a.pdf", max_bytes=1, timeout=5):
            pass


@pytest.mark.parametrize("document_id", ["a", "jobs", "0b0f6c1e-6a5e-4a0e-9a39-6a1f3b1f8f11"])
def test_keys_of_extractions_and_results_differ(document_id: str) -> None:
    assert extraction_key(document_id) != result_key(document_id)
