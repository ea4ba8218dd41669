"""Repositories of GitHub: description, topics, releases and README, through its REST API.

Requests are sent as
https://docs.github.com/en/rest/using-the-rest-api/best-practices-for-using-the-rest-api demands:
one after the other, conditional (which is free when nothing has changed), and with a pause when one
of the rate limits is reached.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar
from urllib.parse import quote

from pydantic import AfterValidator, Field

from switchyard.services.pipeline.records.strict_model import StrictModel
from switchyard.services.pipeline.sources.document_source import (
    MAX_TEXT,
    DocumentSource,
    FoundDocument,
    is_prose,
    mapping,
    words,
)
from switchyard.services.pipeline.sources.source_client import SourceClient, SourceServer
from switchyard.services.pipeline.sources.source_errors import InvalidSourceResponse, SourceNotFound

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings

MAX_RELEASES = 10
"""Number of the newest releases that are taken in."""
MAX_NOTES = 20_000
"""Characters of one release's notes."""
_JSON = "application/vnd.github+json"
_RAW = "application/vnd.github.raw+json"
_NAME = re.compile(
    r"(?:https?://(?:www\.)?github\.com/|git@github\.com:)?"
    r"(?P<owner>[A-Za-z0-9](?:[A-Za-z0-9_-]{0,38}))/(?P<name>[A-Za-z0-9._-]{1,100}?)(?:\.git)?/?",
    re.ASCII,
)
_DETAILS = ("description", "homepage", "language", "default_branch", "html_url", "created_at")


def repository_name(text: str) -> str:
    """Return `owner/name` of a repository, from that or from its address. Raises ValueError."""
    match = _NAME.fullmatch(text.strip())
    if match is None or match["name"] in (".", ".."):
        raise ValueError(f"{text[:100]!r} is no repository: use owner/name")
    return f"{match['owner']}/{match['name']}"


class IngestGithub(StrictModel):
    """Payload of `ingest_github`."""

    repository: Annotated[str, AfterValidator(repository_name)] = Field(max_length=300)
    """The repository as `owner/name`, or its address."""
    force: bool = False
    """Run the stages again although the document has not changed."""


def github_server(settings: Settings) -> SourceServer:
    """Return the API's server with the address and the token of the settings."""
    headers = {"X-GitHub-Api-Version": "2022-11-28"}
    if settings.github_token is not None:
        headers["Authorization"] = f"Bearer {settings.github_token.get_secret_value()}"
    return SourceServer(
        "github",
        label="GitHub",
        base_url=settings.github_base_url.rstrip("/"),
        interval=settings.github_interval,
        headers=headers,
    )


class GithubSource(DocumentSource):
    """Makes one document of each repository, `github:owner/name`, by whatever name it is given."""

    name: ClassVar[str] = "github"
    label: ClassVar[str] = "GitHub"

    def server(self, settings: Settings) -> SourceServer:
        return github_server(settings)

    async def find(self, item: IngestGithub, client: SourceClient) -> FoundDocument:
        path = f"/repos/{quote(item.repository)}"
        answer = await client.get(path, accept=_JSON, conditional=True)
        details = mapping(answer.json(), "repository", self.label)
        try:
            name = repository_name(str(details.get("full_name")))
        except ValueError as error:
            raise InvalidSourceResponse("GitHub's repository has no name") from error
        readme = await _get_if_there(client, f"{path}/readme", _RAW)
        releases = await client.get(
            f"{path}/releases", {"per_page": str(MAX_RELEASES)}, accept=_JSON, conditional=True
        )
        release_list = releases.json()
        if not isinstance(release_list, list):
            raise InvalidSourceResponse("GitHub returned something other than a list of releases")
        newest = [each for each in release_list if isinstance(each, dict)][:MAX_RELEASES]
        return FoundDocument(
            id=name.lower(),
            title=name,
            text=_text(name, details, readme, newest),
            metadata=_metadata(name, details, newest),
        )


async def _get_if_there(client: SourceClient, path: str, accept: str) -> str:
    try:
        return (await client.get(path, accept=accept, conditional=True)).text()
    except SourceNotFound:
        return ""


def _text(
    name: str, details: Mapping[str, Any], readme: str, releases: list[dict[str, Any]]
) -> str:
    parts = [f"# {name}"]
    if is_prose(details.get("description")):
        parts.append(details["description"].strip())
    if topics := words(details.get("topics")):
        parts.append(f"Topics: {', '.join(topics)}")
    if readme.strip():
        parts.append(readme.strip())
    for release in releases:
        if release.get("draft"):
            continue
        tag = str(release.get("tag_name") or "")[:200]
        title = release["name"].strip()[:300] if is_prose(release.get("name")) else ""
        parts.append(f"## Release {tag}" + (f": {title}" if title and title != tag else ""))
        if is_prose(release.get("body")):
            parts.append(release["body"].strip()[:MAX_NOTES])
    return "\n\n".join(parts)[:MAX_TEXT] + "\n"


def _metadata(
    name: str, details: Mapping[str, Any], releases: list[dict[str, Any]]
) -> dict[str, Any]:
    licence = details.get("license")
    metadata: dict[str, Any] = {"repository": name}
    metadata |= {key: details[key][:2000] for key in _DETAILS if is_prose(details.get(key))}
    metadata["topics"] = words(details.get("topics"))
    if isinstance(licence, dict) and is_prose(licence.get("spdx_id")):
        metadata["license"] = licence["spdx_id"][:100]
    for flag in ("fork", "archived", "private"):
        metadata[flag] = details.get(flag) is True
    if isinstance(stars := details.get("stargazers_count"), int):
        metadata["stars"] = stars
    metadata["releases"] = [
        {
            key: each[key][:300]
            for key in ("tag_name", "name", "published_at", "html_url")
            if is_prose(each.get(key))
        }
        for each in releases
        if not each.get("draft")
    ]
    return metadata
