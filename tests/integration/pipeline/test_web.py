"""Web pages and files behind addresses: which are ingested, and which are never requested."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from switchyard.services.common.files.errors import UnsupportedDocument
from switchyard.services.common.files.storage_keys import result_key
from switchyard.services.engine.jobs.outcomes import Done, Next, Snooze
from switchyard.services.engine.jobs.registry import InvalidPayload, Registry
from switchyard.services.pipeline.sources.source_errors import (
    InvalidSourceResponse,
    SourceNotFound,
    SourceRefused,
    SourceUnavailable,
)
from switchyard.services.pipeline.sources.web import web_fetcher
from switchyard.services.pipeline.sources.web.robots import judge
from switchyard.services.pipeline.sources.web.web_addresses import link_addresses, page_address
from switchyard.services.pipeline.sources.web.web_fetcher import FetchedPage
from switchyard.services.pipeline.text.web_page_text import read_page
from switchyard.services.pipeline.workers.ingest import source_jobs
from switchyard.services.pipeline.workers.ingest import web as ingest_web
from switchyard.services.pipeline.workers.ingest.web import UnreadablePage, document_on_page
from tests.integration.pipeline.conftest import Pipeline
from tests.integration.pipeline.documents import get_only_document
from tests.support import site as server
from tests.support.hosts import PAGE
from tests.support.pdfs import pdf
from tests.support.site import Site

STAGES = ["extract_text", "summarize_content", "embed_content", "classify_document", "link_content"]
JOB = "ingest_url"


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        site.pages["/tides"] = server.with_etag(PAGE, '"1"', content_type="text/html")
        yield site


@pytest.fixture
def web_pipeline(pipeline: Pipeline, site: Site) -> Pipeline:
    hosts = (site.origin.removeprefix("http://"),)
    update = {"web_hosts": hosts, "web_interval": 0.0}
    return replace(pipeline, settings=pipeline.settings.model_copy(update=update))


def payload_for(site: Site, path: str = "/tides") -> dict[str, Any]:
    return {"url": f"{site.origin}{path}"}


async def test_a_page_becomes_a_document_of_its_readable_text(
    web_pipeline: Pipeline, site: Site
) -> None:
    assert await web_pipeline.run(JOB, payload_for(site)) == [JOB, *STAGES]
    document = await get_only_document(web_pipeline)
    assert document.source == f"url:{site.origin}/tides"
    assert (document.title, document.media_type) == ("Tides of Oldport", "text/markdown")
    text = web_pipeline.storage.get(f"uploads/{document.id}/input.md").decode()
    assert "follows the moon" in text
    assert "Imprint" not in text
    entry = json.loads(web_pipeline.storage.get(result_key(document.id)))["entry"]
    assert entry == {"url": f"{site.origin}/tides", "author": "Ada Tide", "language": "en"}
    assert site.paths == ["/robots.txt", "/tides"]
    assert site.requests[1].headers["user-agent"].startswith("switchyard")


async def test_a_pdf_and_a_text_are_ingested_as_they_are(
    web_pipeline: Pipeline, site: Site
) -> None:
    site.pages["/paper"] = server.says(pdf(), "application/octet-stream")
    site.pages["/notes.txt"] = server.says("Low water is at six. High water is at noon.")
    assert await web_pipeline.run(JOB, payload_for(site, "/paper")) == [JOB, *STAGES]
    assert (await get_only_document(web_pipeline)).media_type == "application/pdf"
    assert await web_pipeline.run(JOB, payload_for(site, "/notes.txt")) == [JOB, *STAGES]


async def test_a_page_and_a_text_are_read_in_the_charset_that_their_server_names(
    web_pipeline: Pipeline, site: Site
) -> None:
    text = "The mole’s toll is 5 €, so “high water” is dear"
    page = PAGE.replace("follows the moon", f"follows the moon. {text}").encode("cp1252")
    site.pages["/tides"] = server.says(page, "text/html; charset=ISO-8859-1")
    await web_pipeline.run_job(JOB, payload_for(site))
    document = await get_only_document(web_pipeline)
    assert text in web_pipeline.storage.get(f"uploads/{document.id}/input.md").decode()
    found_document, _ = await document_on_page(
        FetchedPage(
            "http://a/notes.txt",
            200,
            {"content-type": "text/plain; charset=gb2312"},
            "朱镕基".encode("gbk"),
        ),
        "http://a/notes.txt",
        cast("Any", None),
    )
    assert found_document is not None
    assert found_document.text == "朱镕基"


async def test_a_file_is_decoded_and_hashed_off_the_event_loop(
    web_pipeline: Pipeline, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may be as large as any document."""
    threads: dict[str, int] = {}
    for module, name in ((ingest_web, "decode_text"), (source_jobs, "identify")):
        monkeypatch.setattr(module, name, _record_thread(getattr(module, name), threads))
    site.pages["/paper"] = server.says(pdf(), "application/octet-stream")
    site.pages["/notes.txt"] = server.says("Low water is at six. High water is at noon.")
    for path in ("/paper", "/notes.txt"):
        await web_pipeline.run_job(JOB, payload_for(site, path))
    assert threads.keys() == {"decode_text", "identify"}
    assert threading.get_ident() not in threads.values()


def _record_thread(function: Callable[..., Any], threads: dict[str, int]) -> Callable[..., Any]:
    def call_and_record(*arguments: Any) -> Any:
        threads[function.__name__] = threading.get_ident()
        return function(*arguments)

    return call_and_record


async def test_an_unchanged_page_is_not_ingested_again(web_pipeline: Pipeline, site: Site) -> None:
    await web_pipeline.run(JOB, payload_for(site))
    assert await web_pipeline.run(JOB, payload_for(site, "/tides#spring")) == [JOB]
    assert isinstance(web_pipeline.outcomes[0][1], Done)
    assert site.requests[-1].headers["if-none-match"] == '"1"'
    assert site.paths == ["/robots.txt", "/tides", "/tides"]  # robots.txt is cached for an hour
    site.pages["/tides"] = server.says(PAGE.replace("four metres", "five metres"), "text/html")
    assert await web_pipeline.run(JOB, payload_for(site)) == [JOB, *STAGES]
    assert web_pipeline.result(JOB)["updated"] is True


async def test_robots_txt_is_obeyed(web_pipeline: Pipeline, site: Site) -> None:
    rules = "User-agent: *\nDisallow: /\n\nUser-agent: Switchyard\nDisallow: /private/*.html$\n"
    site.pages["/robots.txt"] = server.says(rules)
    with pytest.raises(SourceRefused, match=r"robots\.txt"):
        await web_pipeline.run_job(JOB, payload_for(site, "/private/tides.html"))
    site.pages["/to"] = server.moved("/private/tides.html")
    with pytest.raises(SourceRefused, match=r"robots\.txt"):
        await web_pipeline.run_job(JOB, payload_for(site, "/to"))
    assert "/private/tides.html" not in site.paths
    assert isinstance(await web_pipeline.run_job(JOB, payload_for(site)), Next)


@pytest.mark.parametrize(
    "rules",
    [server.fails(404), server.fails(403), server.says(b"\xff\x00 <html>"), server.says("")],
)
async def test_a_site_without_rules_allows_everything(
    web_pipeline: Pipeline, site: Site, rules: server.Behaviour
) -> None:
    site.pages["/robots.txt"] = rules
    assert isinstance(await web_pipeline.run_job(JOB, payload_for(site)), Next)


async def test_a_site_whose_robots_txt_is_unavailable_is_not_fetched(
    web_pipeline: Pipeline, site: Site
) -> None:
    site.pages["/robots.txt"] = server.fails(500)
    with pytest.raises(SourceUnavailable):
        await web_pipeline.run_job(JOB, payload_for(site))
    site.pages["/robots.txt"] = server.throttled(40, status=503)
    outcome = await web_pipeline.run_job(JOB, payload_for(site))
    assert isinstance(outcome, Snooze)
    assert outcome.after == 40
    assert "/tides" not in site.paths


async def test_rules_without_an_end_are_read_as_far_as_the_rfc_says(
    web_pipeline: Pipeline, site: Site
) -> None:
    site.pages["/robots.txt"] = server.endless()
    assert isinstance(await web_pipeline.run_job(JOB, payload_for(site)), Next)


async def test_rules_that_take_too_long_to_read_forbid(
    web_pipeline: Pipeline, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.pages["/robots.txt"] = server.says("User-agent: *\nDisallow: /*a*a*a*a*a*a*a*a*a*b\n")
    monkeypatch.setattr("tests.integration.pipeline.conftest.JobContext", _TimedOutContext)
    with pytest.raises(SourceRefused, match="can't be read"):
        await web_pipeline.run_job(JOB, payload_for(site))


class _TimedOutContext:
    """A context whose processes time out at once."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        from switchyard.services.engine.jobs.context import JobContext

        async def time_out(*_: Any, **__: Any) -> Any:
            raise TimeoutError

        return JobContext(*args, **{**kwargs, "in_process": time_out})


async def test_no_redirect_leads_to_our_own_network(web_pipeline: Pipeline, site: Site) -> None:
    with Site() as internal_site:
        internal_site.pages["/secret"] = server.says(PAGE, "text/html")
        with pytest.raises(SourceRefused, match="JOBS_WEB_HOSTS") as refused:
            await web_pipeline.run_job(JOB, payload_for(internal_site, "/secret"))
        assert internal_site.origin.removeprefix("http://") in str(refused.value)
        for path, target in (
            ("/a", f"{internal_site.origin}/secret"),
            ("/b", "file:///etc/passwd"),
        ):
            site.pages[path] = server.moved(target)
            with pytest.raises(SourceRefused):
                await web_pipeline.run_job(JOB, payload_for(site, path))
        site.pages["/robots.txt"] = server.moved(f"{internal_site.origin}/secret")
        for cached_file in (web_pipeline.settings.data_dir / "files/sources/robots").iterdir():
            cached_file.unlink()
        with pytest.raises(SourceRefused):
            await web_pipeline.run_job(JOB, payload_for(site))
        assert internal_site.requests == []


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (server.fails(404), SourceNotFound),
        (server.fails(403), SourceRefused),
        (server.fails(500), SourceUnavailable),
        (server.cut(), SourceUnavailable),
        (server.cut_in_the_middle(), SourceUnavailable),
        (server.endless(), InvalidSourceResponse),
        (server.says(b"\x00\x01\x02" * 100), UnsupportedDocument),
        (server.says(b"PK\x03\x04" * 100, "text/html"), UnreadablePage),
        (server.says(b"", "text/html"), UnreadablePage),
        (server.says("<html><body></body></html>", "text/html"), UnreadablePage),
        (server.moved("/tides/2"), SourceNotFound),
    ],
)
async def test_each_kind_of_bad_page_raises_its_own_error(
    web_pipeline: Pipeline,
    site: Site,
    behaviour: server.Behaviour,
    error: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(web_fetcher, "MAX_PAGE_BYTES", 300_000)
    site.pages["/tides"] = behaviour
    with pytest.raises(error):
        await web_pipeline.run_job(JOB, payload_for(site))


@pytest.mark.parametrize("limit_answer", [server.throttled(40), server.throttled(40, status=503)])
async def test_a_site_that_asks_for_a_pause_gets_one(
    web_pipeline: Pipeline, site: Site, limit_answer: server.Behaviour
) -> None:
    site.pages["/tides"] = limit_answer
    outcome = await web_pipeline.run_job(JOB, payload_for(site))
    assert isinstance(outcome, Snooze)
    assert outcome.after == 40
    request_count = len(site.requests)
    assert isinstance(await web_pipeline.run_job(JOB, payload_for(site, "/other")), Snooze)
    assert len(site.requests) == request_count


async def test_one_host_is_asked_as_slowly_as_its_robots_txt_says(
    web_pipeline: Pipeline, site: Site
) -> None:
    with Site() as other_site:
        other_site.pages["/tides"] = site.pages["/tides"]
        hosts = tuple(each.origin.removeprefix("http://") for each in (site, other_site))
        slower_settings = web_pipeline.settings.model_copy(
            update={"web_hosts": hosts, "web_interval": 0.4}
        )
        web_pipeline = replace(web_pipeline, settings=slower_settings)
        site.pages["/robots.txt"] = server.says("User-agent: *\nCrawl-delay: 4\n")
        await web_pipeline.run_job(JOB, payload_for(site))
        site.pages["/more"] = server.says(PAGE, "text/html")
        await web_pipeline.run_job(JOB, payload_for(site, "/more"))
        assert [each.path for each in site.requests] == ["/robots.txt", "/tides", "/more"]
        # The delay counts from the sending of the first request, which may arrive late, but was
        # sent after the rules were requested.
        rules, _first, second = (each.at for each in site.requests)
        assert second - rules >= 4
        assert not isinstance(await web_pipeline.run_job(JOB, payload_for(other_site)), Snooze)


async def test_a_malformed_page_is_read_without_an_error() -> None:
    for html in (
        b"<div>" * 200_000,
        b"<" * 200_000,
        b"\xff\xfe\x00<\x00p",
        b"<html lang='\x00'><title>\xff</title><meta name=robots content='none'><p>" + b"a " * 9999,
        b"<!DOCTYPE html [<!ENTITY a 'b'>]><html><body>&a;<a href='http://[::1'>x</a></html>",
    ):
        page_text = read_page(html, "http://example.org/", "no-such-charset")
        assert isinstance(page_text.text, str)


@pytest.mark.parametrize("charset", ["idna", "undefined", "zip", "punycode", "utf-7"])
def test_no_charset_that_a_server_names_fails(charset: str) -> None:
    page = PAGE.encode().replace(b"<title>", b"<title>+2AA-")
    assert isinstance(read_page(page, "http://example.org/", charset).text, str)


def test_the_links_and_robots_rules_of_a_page_are_read() -> None:
    page_text = read_page(PAGE.encode(), "http://example.org/tides/")
    base = "http://example.org/tides/x"
    assert link_addresses(base, page_text.links, max_links=10) == [
        "http://example.org/",
        "http://example.org/imprint",
        "http://example.org/tides/moon.html",
        "http://example.org/tides/list.pdf",
    ]
    hidden = PAGE.replace("<head>", '<head><meta name="robots" content="noindex, nofollow">')
    page_text = read_page(hidden.encode(), "http://example.org/")
    assert (page_text.links, page_text.indexed) == ((), False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("HTTP://Example.ORG:80/a?b#c", "http://example.org/a?b"),
        ("https://example.org", "https://example.org/"),
        ("https://example.org:8443/x", "https://example.org:8443/x"),
        ("https://münchen.example/ä", "https://xn--mnchen-3ya.example/%C3%A4"),
        ("ftp://example.org/", None),
        ("javascript:alert(1)", None),
        ("http://user:pass@example.org/", None),
        ("http://example.org:99999/", None),
        ("http://" + "a" * 3000, None),
        ("example.org", None),
        ("", None),
    ],
)
def test_an_address_has_one_form(text: str, expected: str | None) -> None:
    if expected is not None:
        assert page_address(text) == expected
        assert Registry.load().get(JOB).validate({"url": text}).model_dump()["url"] == expected
        return
    with pytest.raises(InvalidPayload):
        Registry.load().get(JOB).validate({"url": text})


def test_the_longest_rule_decides() -> None:
    rules = "User-agent: *\nAllow: /a/b\nDisallow: /a\nCrawl-delay: 1000\n"
    assert judge(rules, "http://x.org/a/b/c").allowed
    assert not judge(rules, "http://x.org/a/c").allowed
    assert judge(rules, "http://x.org/").delay == 60
