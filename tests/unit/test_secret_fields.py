from typing import Annotated, Any

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, RootModel, SecretStr

from switchyard.services.engine.jobs.registered_types import job_type_from, record_of
from switchyard.services.engine.jobs.registry import InvalidPayload, Registry, job, job_type_of
from switchyard.services.engine.jobs.secret_fields import (
    CHANGED,
    HIDDEN,
    Secret,
    hidden,
    hidden_message,
    revealed,
    secret_schema,
)


class Login(BaseModel):
    user: str
    password: Annotated[str, Secret()]


class Tree(BaseModel):
    key: Annotated[str | None, Secret()] = None
    parts: list["Tree"] = []


class Named(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    token: Annotated[str, Secret()] = Field(alias="apiToken")
    code: Annotated[int, Secret()] = Field(0, validation_alias=AliasChoices("pin", "secretCode"))


class Deliver(BaseModel):
    url: str = ""
    token: Annotated[str, Secret()] = ""
    plain: SecretStr | None = None
    login: Login | None = None
    logins: list[Login] = []
    by_name: dict[str, Login] = {}
    pair: tuple[str, Annotated[str, Secret()]] = ("", "")
    either: Login | list[str] | None = None
    all_of_it: Annotated[dict[str, Any] | None, Secret()] = None
    tree: Tree | None = None
    named: Named | None = None


class Tokens(RootModel[list[Annotated[str, Secret()]]]):
    pass


class Open(BaseModel):
    url: str


LOGIN = {"user": "me", "password": "geheim"}
SHOWN = {"user": "me", "password": HIDDEN}


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        ({"url": "a", "token": "geheim"}, {"url": "a", "token": HIDDEN}),
        ({"url": "a", "unknown": "b"}, {"url": "a", "unknown": "b"}),
        ({"plain": "geheim"}, {"plain": HIDDEN}),
        ({"plain": None}, {"plain": None}),
        ({"login": LOGIN}, {"login": SHOWN}),
        ({"logins": [LOGIN, LOGIN]}, {"logins": [SHOWN, SHOWN]}),
        ({"by_name": {"a": LOGIN}}, {"by_name": {"a": SHOWN}}),
        ({"pair": ["a", "geheim"]}, {"pair": ["a", HIDDEN]}),
        ({"either": LOGIN}, {"either": SHOWN}),
        ({"either": ["a"]}, {"either": ["a"]}),
        ({"all_of_it": {"a": [1]}}, {"all_of_it": HIDDEN}),
        (
            {"tree": {"parts": [{"key": "geheim", "parts": [{"key": "geheim"}]}]}},
            {"tree": {"parts": [{"key": HIDDEN, "parts": [{"key": HIDDEN}]}]}},
        ),
        ({"named": {"apiToken": "geheim"}}, {"named": {"apiToken": HIDDEN}}),
        # No payload of that type, and still nothing of it is shown.
        ({"token": ["geheim"], "logins": "x"}, {"token": HIDDEN, "logins": "x"}),
    ],
)
def test_secrets_are_hidden_wherever_they_stand(
    payload: dict[str, Any], shown: dict[str, Any]
) -> None:
    before = repr(payload)
    assert hidden(payload, secret_schema(Deliver)) == shown
    assert repr(payload) == before


@pytest.mark.parametrize("name", ["apiToken", "token", "pin", "secretCode", "code"])
def test_a_field_is_hidden_by_each_of_its_names(name: str) -> None:
    assert hidden({name: "geheim"}, secret_schema(Named)) == {name: HIDDEN}


def test_payloads_that_contain_themselves_or_are_no_object_are_hidden_too() -> None:
    assert hidden({"key": "a", "parts": [{"key": "b"}]}, secret_schema(Tree)) == {
        "key": HIDDEN,
        "parts": [{"key": HIDDEN}],
    }
    assert hidden(["a", "b"], secret_schema(Tokens)) == [HIDDEN, HIDDEN]
    assert secret_schema(Open) is None


def test_two_payloads_are_compared_without_their_secrets() -> None:
    before = {"token": "a", "login": LOGIN}
    after = {"token": "b", "login": LOGIN, "url": "c"}
    compared = hidden(after, secret_schema(Deliver), before)
    assert compared == {"token": CHANGED, "login": SHOWN, "url": "c"}


def test_what_was_edited_as_it_was_shown_has_its_secrets_again() -> None:
    schema = secret_schema(Deliver)
    before = {"url": "a", "token": "geheim", "logins": [LOGIN], "pair": ["x", "y"]}
    edited = hidden(before, schema) | {"url": "b", "pair": ["x", "z"]}
    assert revealed(edited, schema, before) == {**before, "url": "b", "pair": ["x", "z"]}
    # Nothing stood there before: it stays what it is, and is refused below.
    assert revealed({"token": HIDDEN}, schema, {}) == {"token": HIDDEN}


@job("deliver_secretly", worker="llm", lanes=("hot",))
async def deliver(payload: Deliver, ctx: Any) -> None:
    pass


@pytest.mark.parametrize("is_loaded", [True, False])
def test_whoever_knows_the_type_hides_and_takes_no_payload_that_was_copied_from_a_page(
    is_loaded: bool,
) -> None:
    job_type = job_type_of(deliver)
    if not is_loaded:
        job_type = job_type_from(record_of(job_type, "a worker"))
    registry = Registry()
    registry.set_registered([job_type], {})
    assert registry.shown_payload("deliver_secretly", {"token": "a"}) == {"token": HIDDEN}
    assert registry.shown_payload("unknown", {"token": "a"}) == {"token": "a"}
    job_type.validate({"token": "a", "url": HIDDEN})
    with pytest.raises(InvalidPayload, match="give its value"):
        job_type.validate({"login": {"user": "me", "password": HIDDEN}})
    with pytest.raises(InvalidPayload) as refused:
        job_type.validate({"login": {"user": "me", "password": ["geheim"]}, "token": 815})
    assert "token" in str(refused.value)
    assert "geheim" not in str(refused.value)
    assert "815" not in str(refused.value)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"job_type":"deliver","payload":{"token":"a"}}', True),
        (b'{"job_type":"open","payload":{"token":"a"}}', False),
        (b'{"job_type":["deliver"],"payload":{"token":"a"}}', False),
        (b'{"job_type":"deliver","payload":', False),
        (b"\xff", False),
        (b"[1]", False),
    ],
)
def test_the_message_of_a_letter_is_shown_without_secrets(body: bytes, shown: bool) -> None:
    schema = secret_schema(Deliver)
    got = hidden_message(body, lambda name: schema if name == "deliver" else None)
    if shown:
        assert got == b'{"job_type": "deliver", "payload": {"token": "[hidden]"}}'
    else:
        assert got == body
