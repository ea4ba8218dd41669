"""Repositories, models and data sets are ingested once, and again when they have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.outcomes import Done, Next, Snooze
from switchyard.services.engine.jobs.registry import InvalidPayload, Registry
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.records.documents import Document
from switchyard.services.pipeline.sources.backfill_github import GithubOptions
from switchyard.services.pipeline.sources.github import repository_name
from switchyard.services.pipeline.sources.source_errors import (
    InvalidSourceResponse,
    SourceNotFound,
    SourceRefused,
    SourceUnavailable,
)
from tests.integration.pipeline.conftest import Pipeline
from tests.integration.pipeline.documents import get_only_document, read_only_result
from tests.support import site as server
from tests.support.hosts import CARD, README, GithubSite, HubSite, model, release

STAGES = ["extract_text", "summarize_content", "embed_content", "classify_document", "link_content"]
REPOSITORY = {"repository": "psf/requests"}
MODEL = {"id": "google-bert/bert-base-uncased"}


@pytest.fixture
def hub() -> Iterator[HubSite]:
    with HubSite() as hub:
        hub.put(model(), CARD)
        yield hub


@pytest.fixture
def site() -> Iterator[GithubSite]:
    with GithubSite() as site:
        site.put()
        yield site


@pytest.fixture
def source_pipeline(pipeline: Pipeline, site: GithubSite, hub: HubSite) -> Pipeline:
    update = {
        "github_base_url": site.origin,
        "github_interval": 0.0,
        "hf_base_url": hub.origin,
        "hf_interval": 0.0,
    }
    return replace(pipeline, settings=pipeline.settings.model_copy(update=update))


async def ingest_claiming(pipeline: Pipeline, source: str, text: str, **fields: str) -> Document:
    """Send a document that claims to come from that source."""
    key = "uploads/incoming/0123456789abcdef0123456789abcdef"
    pipeline.storage.put(key, text.encode())
    await pipeline.run("ingest_document", {"key": key, "source": source, **fields})
    assert pipeline.ledger is not None
    [claimed] = (
        await PipelineLedger(pipeline.ledger).documents.list_documents(source=source)
    ).items
    return claimed


@pytest.mark.parametrize("filename", ["mine.md", "psf.requests@0123456789ab.md"])
async def test_a_text_that_claims_the_source_of_a_repository_does_not_take_its_place(
    source_pipeline: Pipeline, filename: str
) -> None:
    source = "github:psf/requests"
    claimed = await ingest_claiming(
        source_pipeline, source, "# Lies\n\nA text of my own.", filename=filename
    )
    assert await source_pipeline.run("ingest_github", REPOSITORY) == ["ingest_github", *STAGES]
    assert source_pipeline.ledger is not None
    [repository_document] = (
        await PipelineLedger(source_pipeline.ledger).documents.list_documents(source=source)
    ).items
    assert (repository_document.title, repository_document.state) == ("psf/requests", "completed")
    assert repository_document.id != claimed.id
    remaining = await PipelineLedger(source_pipeline.ledger).documents.get_document(claimed.id)
    assert remaining is not None
    assert (remaining.source, remaining.state) == (None, "completed")
    assert await source_pipeline.run("ingest_github", REPOSITORY) == ["ingest_github"]
    second_claim = await ingest_claiming(source_pipeline, source, "# Lies\n\nAnother one.")
    assert second_claim.id == repository_document.id


# --- GitHub -------------------------------------------------------------------------------------


async def test_a_repository_becomes_a_document(source_pipeline: Pipeline, site: GithubSite) -> None:
    assert await source_pipeline.run("ingest_github", REPOSITORY) == ["ingest_github", *STAGES]
    document = await get_only_document(source_pipeline)
    assert (document.source, document.title) == ("github:psf/requests", "psf/requests")
    assert document.state == "completed"
    result = await read_only_result(source_pipeline)
    entry = result["entry"]
    assert entry["topics"] == ["http", "python"]
    assert (entry["license"], entry["language"]) == ("Apache-2.0", "Python")
    assert [each["tag_name"] for each in entry["releases"]] == ["v2.32.0"]
    text = (
        source_pipeline.settings.data_dir / "files/uploads" / document.id / "input.md"
    ).read_text()
    for part in ("simple, yet elegant", "Topics: http, python", README, "sessions survive"):
        assert part in text
    assert [request.headers["accept"] for request in site.requests] == [
        "application/vnd.github+json",
        "application/vnd.github.raw+json",
        "application/vnd.github+json",
    ]


async def test_nothing_runs_for_an_unchanged_repository(
    source_pipeline: Pipeline, site: GithubSite
) -> None:
    await source_pipeline.run("ingest_github", REPOSITORY)
    for name in ("psf/requests", "PSF/Requests", "https://github.com/psf/requests.git"):
        site.pages["/repos/PSF/Requests"] = server.moved("/repos/psf/requests")
        site.pages["/repos/PSF/Requests/readme"] = server.moved("/repos/psf/requests/readme")
        site.pages["/repos/PSF/Requests/releases"] = server.moved("/repos/psf/requests/releases")
        before = len(site.requests)
        assert await source_pipeline.run("ingest_github", {"repository": name}) == ["ingest_github"]
        assert source_pipeline.result("ingest_github")["duplicate"] is True
        if name != "PSF/Requests":
            assert all("if-none-match" in each.headers for each in site.requests[before:])
    assert await source_pipeline.run("ingest_github", {**REPOSITORY, "force": True}) != [
        "ingest_github"
    ]


async def test_a_new_release_renews_the_document(
    source_pipeline: Pipeline, site: GithubSite
) -> None:
    await source_pipeline.run("ingest_github", REPOSITORY)
    first = await get_only_document(source_pipeline)
    site.put(releases=[release("v3.0.0"), release("v2.32.0"), release("v4", draft=True)])
    assert await source_pipeline.run("ingest_github", REPOSITORY) == ["ingest_github", *STAGES]
    assert source_pipeline.result("ingest_github")["updated"] is True
    document = await get_only_document(source_pipeline)
    assert document.id == first.id
    tags = [
        each["tag_name"] for each in (await read_only_result(source_pipeline))["entry"]["releases"]
    ]
    assert tags == ["v3.0.0", "v2.32.0"]


async def test_a_repository_may_lack_most_fields(
    source_pipeline: Pipeline, site: GithubSite
) -> None:
    empty_fields = dict.fromkeys(("description", "homepage", "language", "license", "topics"))
    site.put("a/b", readme=None, releases=[], **empty_fields)
    assert await source_pipeline.run("ingest_github", {"repository": "a/b"}) == [
        "ingest_github",
        *STAGES,
    ]
    entry = (await read_only_result(source_pipeline))["entry"]
    assert (entry["topics"], entry["releases"]) == ([], [])


async def test_a_change_during_the_fetch_of_a_repository_is_no_reason_to_snooze(
    source_pipeline: Pipeline, site: GithubSite
) -> None:
    await source_pipeline.run("ingest_github", REPOSITORY)
    other_pipeline = replace(source_pipeline)
    site.put(description="The old words.")

    def answer_and_change(exchange: server.Exchange, request: server.Request) -> None:
        server.says([release("v2.32.0")])(exchange, request)
        site.put(description="The new words.")

    site.pages["/repos/psf/requests/releases"] = answer_and_change
    # A run snoozes only where another run has ingested the repository during the fetch.
    assert isinstance(
        await source_pipeline.run_job("ingest_github", REPOSITORY, run_id="slow"), Next
    )
    site.put(description="The newest words.")
    assert isinstance(
        await other_pipeline.run_job("ingest_github", REPOSITORY, run_id="next"), Next
    )


async def test_a_run_that_fetched_before_another_s_ingestion_fetches_again(
    source_pipeline: Pipeline, site: GithubSite
) -> None:
    await source_pipeline.run("ingest_github", REPOSITORY)
    assert source_pipeline.ledger is not None
    request_arrived, release = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    usual_answer = site.pages["/repos/psf/requests/releases"]

    def answer_later(exchange: server.Exchange, request: server.Request) -> None:
        loop.call_soon_threadsafe(request_arrived.set)
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result(20)
        usual_answer(exchange, request)

    site.put(description="The old words.")
    usual_answer = site.pages["/repos/psf/requests/releases"]
    site.pages["/repos/psf/requests/releases"] = answer_later
    old_run = asyncio.create_task(
        source_pipeline.run_job("ingest_github", REPOSITORY, run_id="old")
    )
    await request_arrived.wait()
    assert source_pipeline.ledger is not None
    document = await get_only_document(source_pipeline)
    await PipelineLedger(source_pipeline.ledger).documents.renew_document(
        document,
        "f" * 64,
        filename="psf.requests@0123456789ab.md",
        title="psf/requests",
        media_type="text/markdown",
        size_bytes=1,
        pipeline="new",
    )
    release.set()
    assert isinstance(await old_run, Snooze)
    assert (await get_only_document(source_pipeline)).filename == "psf.requests@0123456789ab.md"


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (server.says({"message": "Not Found"}, status=404), SourceNotFound),
        (server.says({"message": "Bad credentials"}, status=401), SourceRefused),
        (server.says({"message": "Repository access blocked"}, status=451), SourceRefused),
        (server.says([1]), InvalidSourceResponse),
        (server.says({"full_name": "../../etc"}), InvalidSourceResponse),
        (server.says(b"\x00\xff"), InvalidSourceResponse),
        (server.fails(502), SourceUnavailable),
        (server.cut_in_the_middle(), SourceUnavailable),
        (server.endless(), InvalidSourceResponse),
    ],
)
async def test_each_failure_of_github_raises_its_own_error(
    source_pipeline: Pipeline, site: GithubSite, behaviour: server.Behaviour, error: type[Exception]
) -> None:
    site.next(behaviour)
    with pytest.raises(error):
        await source_pipeline.run_job("ingest_github", REPOSITORY)


async def test_fields_with_invalid_values_are_left_out(
    source_pipeline: Pipeline, site: GithubSite
) -> None:
    site.put(
        description=["x"], topics="x", license=7, stargazers_count="many", html_url={"a": 1}, fork=3
    )
    site.pages["/repos/psf/requests/releases"] = server.says([7, {}, {"name": 3, "body": []}])
    await source_pipeline.run("ingest_github", REPOSITORY)
    entry = (await read_only_result(source_pipeline))["entry"]
    assert not {"description", "license", "stars", "html_url"} & set(entry)
    assert (entry["fork"], entry["topics"]) == (False, [])


@pytest.mark.parametrize("requests_before", [0, 1, 2])
@pytest.mark.parametrize(
    "limit_answer",
    [
        server.throttled(90, status=403),
        server.throttled(90),
        server.says(
            {"message": "API rate limit exceeded for user"},
            status=403,
            headers={"x-ratelimit-remaining": "0", "x-ratelimit-reset": "89"},
        ),
    ],
)
async def test_a_limit_of_githubs_uses_up_no_attempt(
    source_pipeline: Pipeline,
    site: GithubSite,
    limit_answer: server.Behaviour,
    requests_before: int,
) -> None:
    site.next(*([server.answer_well] * requests_before), limit_answer)
    outcome = await source_pipeline.run_job("ingest_github", REPOSITORY)
    assert isinstance(outcome, Snooze)
    assert 85 < outcome.after <= 90
    request_count = len(site.requests)
    assert isinstance(await source_pipeline.run_job("ingest_github", REPOSITORY), Snooze)
    assert len(site.requests) == request_count == requests_before + 1


async def test_the_requests_of_one_repository_come_in_a_row(
    source_pipeline: Pipeline, site: GithubSite
) -> None:
    """Otherwise a job that needs three turns would hardly ever get the third. These are
    backfill jobs: one of them snoozes, where a hot job would wait for its turn."""
    slower_settings = source_pipeline.settings.model_copy(update={"github_interval": 0.05})
    source_pipeline = replace(source_pipeline, settings=slower_settings)
    site.put("a/b")
    site.put("c/d")
    outcomes = await asyncio.gather(
        *(
            replace(source_pipeline).run_job(
                "ingest_github",
                {"repository": name},
                run_id=name.replace("/", "."),
                lane="backfill",
            )
            for name in ("psf/requests", "a/b", "c/d")
        )
    )
    kinds = [type(each) for each in outcomes]
    assert kinds.count(Next) == 2
    assert kinds.count(Snooze) == 1
    names = [path.split("/")[2] for path in site.paths]
    assert names in ([*[a] * 3, *[b] * 3] for a in names for b in names)
    assert site.most_at_once == 1


async def test_the_token_is_sent_and_shown_nowhere(
    monkeypatch: pytest.MonkeyPatch, source_pipeline: Pipeline, site: GithubSite
) -> None:
    monkeypatch.setenv("JOBS_GITHUB_TOKEN", "ghp_s3cret")
    settings = Settings(
        data_dir=source_pipeline.settings.data_dir, github_base_url=site.origin, github_interval=0.0
    )
    site.next(server.says({"message": "Bad credentials"}, status=401))
    with pytest.raises(SourceRefused) as refused:
        await replace(source_pipeline, settings=settings).run_job("ingest_github", REPOSITORY)
    assert site.requests[0].headers["authorization"] == "Bearer ghp_s3cret"
    assert "ghp_s3cret" not in f"{refused.value}{settings!r}"


@pytest.mark.parametrize(
    "name",
    ["", "psf", "a/b/c", "../x", "a/..", "-a/b", "a b/c", "https://gitlab.com/a/b", "a/" * 200],
)
def test_an_invalid_repository_name_is_refused_when_it_is_published(name: str) -> None:
    with pytest.raises(InvalidPayload):
        Registry.load().get("ingest_github").validate({"repository": name})


# --- Hugging Face -------------------------------------------------------------------------------


async def test_a_models_card_becomes_a_document(source_pipeline: Pipeline) -> None:
    assert await source_pipeline.run("ingest_huggingface", MODEL) == ["ingest_huggingface", *STAGES]
    document = await get_only_document(source_pipeline)
    assert document.source == "huggingface:model/google-bert/bert-base-uncased"
    entry = (await read_only_result(source_pipeline))["entry"]
    assert (entry["license"], entry["pipeline_tag"]) == ("apache-2.0", "fill-mask")
    assert entry["datasets"] == ["bookcorpus"]
    text = (
        source_pipeline.settings.data_dir / "files/uploads" / document.id / "input.md"
    ).read_text()
    assert "masked language modelling" in text
    assert "license: apache-2.0" not in text  # the card's front matter is for machines
    assert "Tags: transformers, bert, fill-mask, en\n" in text


async def test_a_data_set_is_another_document_than_a_model_of_its_name(
    source_pipeline: Pipeline, hub: HubSite
) -> None:
    hub.put(model("a/b"), CARD)
    hub.put({"id": "a/b", "description": "Words of harbours.", "tags": []}, None, "dataset")
    await source_pipeline.run("ingest_huggingface", {"id": "a/b"})
    await source_pipeline.run("ingest_huggingface", {"id": "a/b", "kind": "dataset"})
    assert source_pipeline.ledger is not None
    documents = (await PipelineLedger(source_pipeline.ledger).documents.list_documents()).items
    assert {each.source for each in documents} == {
        "huggingface:model/a/b",
        "huggingface:dataset/a/b",
    }


async def test_likes_and_downloads_make_no_new_document(
    source_pipeline: Pipeline, hub: HubSite
) -> None:
    await source_pipeline.run("ingest_huggingface", MODEL)
    hub.put(model(downloads=1, likes=7), CARD)
    assert await source_pipeline.run("ingest_huggingface", MODEL) == ["ingest_huggingface"]
    assert isinstance(source_pipeline.outcomes[0][1], Done)
    hub.put(model(sha="0" * 40), CARD + "\nNew words.")
    assert await source_pipeline.run("ingest_huggingface", MODEL) == ["ingest_huggingface", *STAGES]


async def test_a_rate_limit_of_the_hub_pauses_requests_to_it(
    source_pipeline: Pipeline, hub: HubSite
) -> None:
    hub.next(server.says(b"", status=429, headers={"RateLimit": '"api";r=0;t=120'}))
    outcome = await source_pipeline.run_job("ingest_huggingface", MODEL)
    assert isinstance(outcome, Snooze)
    assert outcome.after == 121


@pytest.mark.parametrize("name", ["", "a/b/c", "../x", "a..b/c", "https://example.org/a/b"])
def test_an_invalid_hub_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidPayload):
        Registry.load().get("ingest_huggingface").validate({"id": name})


@pytest.mark.parametrize("name", ["octo_acme/tools", "https://github.com/octo_acme/tools.git"])
def test_an_owner_may_be_a_managed_user(name: str) -> None:
    assert repository_name(name) == "octo_acme/tools"
    assert GithubOptions(org="octo_acme").org == "octo_acme"
