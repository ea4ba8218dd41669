"""A key that may publish and not read, without a broker: it gets the results of its own uploads,
but only id and state of documents that others have sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import httpx
import pytest
from pydantic import SecretStr

from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.samples.articles import sample
from tests.integration.api.background_api import http_client, in_background
from tests.integration.api.document_server import send, serving
from tests.support.pdfs import encrypted, pdf

OWNER, SENDER, READER = ("owner-key-" + "x" * 24, "sender-key-" + "x" * 24, "reader-" + "x" * 24)
RECEIPT = {"document_id", "job_id", "state", "duplicate"}
SECRET = "The owner's secret: the tide of the moon rises."


@dataclass(frozen=True, slots=True)
class Clients:
    """Clients of one API with three keys."""

    owner: httpx.AsyncClient
    """May publish and read."""
    sender: httpx.AsyncClient
    """May publish."""
    reader: httpx.AsyncClient
    """May publish and read, and has sent nothing."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    keys = f"{OWNER}:publish+read,{SENDER}:publish,{READER}:publish+read"
    settings = Settings(
        data_dir=tmp_path_factory.mktemp("keys"),
        amqp_url=None,
        retry_delays=(0.05, 0.1),
        api_keys=SecretStr(keys),
    )
    with in_background(serving(settings)) as client:
        yield str(client.base_url)


@pytest.fixture
async def clients(address: str) -> AsyncIterator[Clients]:
    """Yield clients of an API that the tests share: each sends contents and sources that no other
    test sends."""
    async with (
        http_client(address) as owner,
        http_client(address) as sender,
        http_client(address) as reader,
    ):
        for client, key in ((owner, OWNER), (sender, SENDER), (reader, READER)):
            client.headers["X-API-Key"] = key
        yield Clients(owner, sender, reader)


def filled_fields(answer: httpx.Response) -> set[str]:
    """Return the names of the fields of an answer that are not empty."""
    return {name for name, value in answer.json().items() if value not in (None, [], {})}


async def test_a_publish_key_gets_the_result_of_its_own_upload_without_the_names_of_other_documents(
    clients: Clients,
) -> None:
    content = pdf([f"{SECRET} " * 20])
    first = await send(clients.owner, content, title="A secret title", source="there")
    assert first.status_code == 201, first.text
    similar_content = pdf([f"{SECRET} " * 20 + "And again."])
    own_answer = await send(clients.sender, similar_content, title="Mine")
    assert own_answer.status_code == 201, own_answer.text
    assert own_answer.json()["result"]["title"] == "Mine"
    assert own_answer.json()["result"]["links"] == []
    assert first.json()["document_id"] not in own_answer.text
    assert "A secret title" not in own_answer.text
    links = (
        await clients.owner.get(f"/documents/{own_answer.json()['document_id']}/result")
    ).json()
    assert "A secret title" in [each["title"] for each in links["links"]]


@pytest.mark.parametrize("same", ["content", "source"])
async def test_of_an_earlier_document_a_publish_key_gets_id_and_state_alone(
    clients: Clients, same: str
) -> None:
    content = pdf([f"{SECRET} Known by its {same}."])
    first = await send(
        clients.owner, content, name="secret.pdf", title="A secret title", source=f"known {same}"
    )
    fields = {"source": f"known {same}"} if same == "source" else {}
    sent = content if same == "content" else pdf(["Something else."])
    second_answer = await send(clients.sender, sent, **fields)
    assert second_answer.status_code == 200, second_answer.text
    assert filled_fields(second_answer) <= RECEIPT
    assert (
        second_answer.json()["document_id"],
        second_answer.json()["state"],
        second_answer.json()["duplicate"],
    ) == (
        first.json()["document_id"],
        "completed",
        True,
    )
    assert "ecret" not in second_answer.text
    full_answer = await send(clients.reader, sent, **fields)
    assert full_answer.json()["result"]["title"] == "A secret title"


async def test_a_document_that_failed_before_hides_its_first_sender_s_metadata(
    clients: Clients,
) -> None:
    content = encrypted("again")
    await send(clients.owner, content, name="secret.pdf", title="A secret title", source="s")
    second_answer = await send(clients.sender, content, name="mine.pdf")
    assert second_answer.json()["state"] == "failed", second_answer.text
    assert filled_fields(second_answer) <= RECEIPT
    assert "ecret" not in second_answer.text


@pytest.mark.parametrize("path", ["/extract/references", "/process/references"])
async def test_a_publish_key_gets_references_of_its_own_text_and_not_those_of_a_document(
    clients: Clients, path: str
) -> None:
    reference_list = """References
[1] R. Roe and J. Doe. On secrets and their causes. Journal of Physics, 12(3):33-40, 1999.
[2] A. Smith. The sea. Oxford University Press, Oxford, 2004."""
    first = await send(
        clients.owner, pdf([f"{SECRET} It rises [1]. Others disagree [2].", reference_list])
    )
    body = {"document_id": first.json()["document_id"]}
    answer = await clients.sender.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert filled_fields(answer) == {"job_id"}
    full_answer = await clients.reader.post(path, json=body)
    assert "On secrets" in full_answer.text
    own_answer = await clients.sender.post(path, json={"text": f"It rises [1].\n{reference_list}"})
    assert "On secrets" in own_answer.text
    unknown = await clients.sender.post(path, json={"document_id": "doc-0000"})
    assert filled_fields(unknown) == {"job_id"}, unknown.text


async def test_a_publish_key_reads_its_own_extraction_of_a_known_file(clients: Clients) -> None:
    await send(clients.owner, sample(0).content, name="secret.pdf", title="A secret title")
    answer = await send(clients.sender, sample(0).content, endpoint="/extract/text")
    assert answer.json()["result"]["pages"]
    assert "A secret title" not in answer.text


@pytest.mark.parametrize("source", ["arxiv:1605.08386", "URL:https://example.org/", "github:a/b"])
async def test_an_upload_may_not_claim_to_come_from_a_source(clients: Clients, source: str) -> None:
    answer = await send(clients.owner, pdf(["A text of my own."]), source=source)
    assert answer.status_code == 422, answer.text
    assert "publish that job" in answer.text
    assert (await clients.owner.get("/documents", params={"source": source})).json()[
        "documents"
    ] == []
