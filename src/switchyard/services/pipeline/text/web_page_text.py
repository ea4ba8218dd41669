"""Extract the readable text of a web page with trafilatura.

Pages are foreign: this runs in a process that is killed at its limits (`JobContext.in_process`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from switchyard.services.common.files.charset_choice import choose_charset
from switchyard.services.common.files.charsets import WINDOWS_1252, charset_in, charset_named

TIMEOUT = 60.0
MEMORY_MB = 1536
"""Address space for reading one page, in MiB."""
MAX_LINKS = 1000
"""Most links that are read of one page."""
MAX_TEXT = 2 * 1024 * 1024
"""Longest text of a page, in characters."""


@dataclass(frozen=True, slots=True)
class WebText:
    """The text of a page, with metadata and links."""

    title: str
    text: str
    """Markdown; empty where nothing is readable."""
    author: str | None = None
    date: str | None = None
    language: str | None = None
    links: tuple[str, ...] = field(default=())
    """Links as they are in the page, also relative ones; none where the page says `nofollow`."""
    indexed: bool = True
    """False where the page says `noindex`."""


def read_page(html: bytes, url: str, charset: str | None = None) -> WebText:
    """Read a web page; `charset` is the label that its server gives. No content of the page makes
    it raise."""
    from lxml import etree
    from lxml import html as lxml_html
    from trafilatura import extract, extract_metadata
    from trafilatura.settings import use_config

    config = use_config()
    config.set("DEFAULT", "EXTRACTION_TIMEOUT", "0")  # no signals: the process has its limit
    chosen = choose_charset(html, [charset_named(charset), charset_in(html)])
    text = (chosen or WINDOWS_1252).decode(html)
    try:
        parser = lxml_html.HTMLParser(huge_tree=False, recover=True, encoding="utf-8")
        tree = lxml_html.document_fromstring(text.encode("utf-8", "replace"), parser=parser)
    except (etree.ParserError, etree.XMLSyntaxError, ValueError):
        return WebText("", "")
    robots = _directives(tree)
    links = () if "nofollow" in robots else tuple(_links(tree))
    heading = _join_texts(tree.xpath("//title//text()")) or _join_texts(tree.xpath("//h1//text()"))
    metadata = extract_metadata(text, default_url=url)
    page = extract(
        text,
        url=url,
        output_format="markdown",
        include_comments=False,
        include_tables=True,
        config=config,
    )
    return WebText(
        title=_tag_content(metadata.title) or heading,
        text=(page or "")[:MAX_TEXT],
        author=_tag_content(metadata.author),
        date=_tag_content(metadata.date),
        language=_tag_content(metadata.language) or _tag_content(tree.get("lang")),
        links=links,
        indexed="noindex" not in robots,
    )


def _directives(tree: object) -> set[str]:
    """Return the directives of `<meta name="robots">` and `<meta name="switchyard">`."""
    directives: set[str] = set()
    for each in tree.xpath("//meta[@name and @content]")[:200]:  # type: ignore[attr-defined]
        if each.get("name", "").strip().lower() in ("robots", "switchyard"):
            words = each.get("content", "").lower().replace(",", " ").split()
            directives |= {"noindex", "nofollow"} if "none" in words else set(words)
    return directives


def _links(tree: object) -> Iterator[str]:
    for each in tree.xpath("//a[@href]")[:MAX_LINKS]:  # type: ignore[attr-defined]
        if "nofollow" not in (each.get("rel") or "").lower().split():
            yield str(each.get("href"))[:4000]


def _join_texts(values: list[object]) -> str:
    return " ".join("".join(map(str, values[:20])).split())[:1000]


def _tag_content(value: object) -> str | None:
    return value.strip() or None if isinstance(value, str) else None
