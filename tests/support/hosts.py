"""GitHub, the Hugging Face hub and web sites as small servers, from what these really answer."""

from __future__ import annotations

from typing import Any

from tests.support.site import Site, says, with_etag

README = "# Requests\n\nRequests is a simple, yet elegant, HTTP library for Python."
CARD = """---
license: apache-2.0
language:
- en
tags:
- fill-mask
---

# BERT base model (uncased)

A transformer pretrained on English with a masked language modelling objective.
"""


def repository(name: str = "psf/requests", **changes: Any) -> dict[str, Any]:
    """Return the answer of `GET /repos/…`, fields in its order; much is left out."""
    owner, _, short = name.partition("/")
    return {
        "id": 1362490,
        "name": short,
        "full_name": name,
        "private": False,
        "owner": {"login": owner, "id": 50630501, "type": "Organization"},
        "html_url": f"https://github.com/{name}",
        "description": "A simple, yet elegant, HTTP library.",
        "fork": False,
        "created_at": "2011-02-13T18:38:17Z",
        "updated_at": "2026-01-04T07:11:21Z",
        "pushed_at": "2026-01-03T19:00:45Z",
        "homepage": "https://requests.readthedocs.io",
        "stargazers_count": 52000,
        "language": "Python",
        "archived": False,
        "license": {"key": "apache-2.0", "name": "Apache License 2.0", "spdx_id": "Apache-2.0"},
        "topics": ["http", "python"],
        "default_branch": "main",
    } | changes


def release(tag: str, **changes: Any) -> dict[str, Any]:
    """Return an element of `GET /repos/…/releases`."""
    return {
        "html_url": f"https://github.com/psf/requests/releases/tag/{tag}",
        "tag_name": tag,
        "name": tag,
        "draft": False,
        "prerelease": False,
        "published_at": "2026-01-02T15:00:00Z",
        "body": f"What is new in {tag}: sessions survive redirects between harbours.",
    } | changes


class GithubSite(Site):
    """Answers for repositories that a test puts in."""

    def put(
        self,
        name: str = "psf/requests",
        *,
        readme: str | None = README,
        releases: list[dict[str, Any]] | None = None,
        **changes: Any,
    ) -> None:
        """Add or replace a repository."""
        repository_answer = repository(name, **changes)
        release_list = [release("v2.32.0")] if releases is None else releases
        path = f"/repos/{name}"
        self.pages[path] = with_etag(repository_answer, f'W/"{hash(str(repository_answer))}"')
        self.pages[f"{path}/releases"] = with_etag(release_list, f'W/"{hash(str(release_list))}"')
        if readme is not None:
            kind = "application/vnd.github.raw+json; charset=utf-8"
            self.pages[f"{path}/readme"] = with_etag(readme, f'"{hash(readme)}"', content_type=kind)
        else:
            self.pages.pop(f"{path}/readme", None)


def model(name: str = "google-bert/bert-base-uncased", **changes: Any) -> dict[str, Any]:
    """Return the answer of `GET /api/models/…`; much is left out."""
    return {
        "_id": "621ffdc036468d709f174328",
        "id": name,
        "private": False,
        "pipeline_tag": "fill-mask",
        "library_name": "transformers",
        "tags": ["transformers", "bert", "fill-mask", "en", "license:apache-2.0", "region:us"],
        "downloads": 60123456,
        "likes": 2100,
        "modelId": name,
        "author": name.partition("/")[0],
        "sha": "86b5e0934494bd15c9632b12f734a8a67f723594",
        "lastModified": "2024-02-19T11:06:12.000Z",
        "gated": False,
        "disabled": False,
        "cardData": {"language": "en", "license": "apache-2.0", "datasets": ["bookcorpus"]},
        "siblings": [{"rfilename": "README.md"}],
        "createdAt": "2022-03-02T23:29:04.000Z",
    } | changes


class HubSite(Site):
    """Answers for models and data sets that a test puts in."""

    def put(self, model_answer: dict[str, Any], card: str | None, kind: str = "model") -> None:
        path = "" if kind == "model" else "/datasets"
        self.pages[f"/api/{kind}s/{model_answer['id']}"] = says(model_answer)
        if card is not None:
            path = f"{path}/{model_answer['id']}/raw/main/README.md"
            self.pages[path] = with_etag(card, f'"{hash(card)}"')


PAGE = """<!doctype html><html lang="en"><head><title>Tides of Oldport</title>
<meta charset="utf-8"><meta name="author" content="Ada Tide"></head>
<body><nav><a href="/">Home</a> <a href="/imprint">Imprint</a></nav>
<article><h1>Tides of Oldport</h1>
<p>The tide in the harbour of Oldport rises twice a day and follows the moon with a delay of about
two hours, as the harbour master has measured for forty years with a float and a pencil.</p>
<p>In spring the difference between high and low water is four metres, in some years nearly five,
and the quay has been raised three times. Read <a href="moon.html#top">more about the moon</a>, or
<a href="https://elsewhere.example/tides" rel="nofollow">other harbours</a>, or
<a href="list.pdf">the list</a>.</p></article>
<footer>All rights reserved. <a href="mailto:ada@example.org">Mail</a></footer></body></html>"""
