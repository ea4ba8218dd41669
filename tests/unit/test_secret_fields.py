from dataclasses import fields
from typing import Annotated, Any, Literal

import pytest
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    Json,
    RootModel,
    SecretStr,
    field_validator,
)

from switchyard.services.engine.bulk.shown import shown_operation
from switchyard.services.engine.jobs.registered_types import job_type_from, record_of
from switchyard.services.engine.jobs.registry import InvalidPayload, Registry, job, job_type_of
from switchyard.services.engine.jobs.retry import Failure
from switchyard.services.engine.jobs.secret_fields import (
    CHANGED,
    HIDDEN,
    MAX_SCRUBBED,
    Scrubber,
    Secret,
    exposes_secrets,
    hide_secrets,
    hide_secrets_in_message,
    reveal_secrets,
    secret_schema,
)
from switchyard.services.engine.publishing.requests import invalid_request_from
from switchyard.services.engine.records.bulk import BulkOperation


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
    deep: Annotated[str, Secret()] = Field("", validation_alias=AliasPath("auth", 0, "key"))
    renamed: Annotated[str, Secret()] = Field("", serialization_alias="out")


class WithoutSecret(BaseModel):
    of: Literal["b"]
    key: str


class WithSecret(BaseModel):
    of: Literal["a"]
    key: Annotated[str, Secret()]


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


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
    packed: Json[Login] | None = None
    names: dict[Annotated[str, Secret()], int] = {}
    open: Anything | None = None
    kind: Annotated[WithoutSecret | WithSecret | None, Field(discriminator="of")] = None


class Tokens(RootModel[list[Annotated[str, Secret()]]]):
    pass


class Open(BaseModel):
    url: str


LOGIN_PAYLOAD = {"user": "me", "password": "geheim"}
HIDDEN_LOGIN = {"user": "me", "password": HIDDEN}


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        ({"url": "a", "token": "geheim"}, {"url": "a", "token": HIDDEN}),
        ({"url": "a", "tokn": "geheim"}, {"url": "a", "tokn": HIDDEN}),
        (
            {"login": LOGIN_PAYLOAD | {"pasword": "geheim"}},
            {"login": HIDDEN_LOGIN | {"pasword": HIDDEN}},
        ),
        ({"named": {"token": "a", "pin": 1}}, {"named": {"token": HIDDEN, "pin": HIDDEN}}),
        (
            {"named": {"secretCode": 1, "out": "a"}},
            {"named": {"secretCode": HIDDEN, "out": HIDDEN}},
        ),
        ({"named": {"auth": [{"key": "a"}]}}, {"named": {"auth": [{"key": HIDDEN}]}}),
        ({"packed": '{"password": "geheim"}'}, {"packed": HIDDEN}),
        ({"names": {"geheim": 1}}, {"names": HIDDEN}),
        ({"open": {"anything": "b"}}, {"open": {"anything": "b"}}),
        (
            {"login": "me:geheim", "logins": {"a": LOGIN_PAYLOAD}},
            {"login": HIDDEN, "logins": HIDDEN},
        ),
        ({"kind": {"of": "a", "key": "geheim"}}, {"kind": {"of": "a", "key": HIDDEN}}),
        ({"plain": "geheim"}, {"plain": HIDDEN}),
        ({"plain": None}, {"plain": None}),
        ({"login": LOGIN_PAYLOAD}, {"login": HIDDEN_LOGIN}),
        ({"logins": [LOGIN_PAYLOAD, LOGIN_PAYLOAD]}, {"logins": [HIDDEN_LOGIN, HIDDEN_LOGIN]}),
        ({"by_name": {"a": LOGIN_PAYLOAD}}, {"by_name": {"a": HIDDEN_LOGIN}}),
        ({"pair": ["a", "geheim"]}, {"pair": ["a", HIDDEN]}),
        ({"either": LOGIN_PAYLOAD}, {"either": HIDDEN_LOGIN}),
        ({"either": ["a"]}, {"either": ["a"]}),
        ({"all_of_it": {"a": [1]}}, {"all_of_it": HIDDEN}),
        (
            {"tree": {"parts": [{"key": "geheim", "parts": [{"key": "geheim"}]}]}},
            {"tree": {"parts": [{"key": HIDDEN, "parts": [{"key": HIDDEN}]}]}},
        ),
        ({"named": {"apiToken": "geheim"}}, {"named": {"apiToken": HIDDEN}}),
        # A payload of the wrong types is hidden, too.
        ({"token": ["geheim"], "logins": "x"}, {"token": HIDDEN, "logins": HIDDEN}),
    ],
)
def test_secrets_are_hidden_at_any_depth(payload: dict[str, Any], shown: dict[str, Any]) -> None:
    before = repr(payload)
    assert hide_secrets(payload, secret_schema(Deliver)) == shown
    assert repr(payload) == before


@pytest.mark.parametrize("name", ["apiToken", "token", "pin", "secretCode", "code"])
def test_a_field_is_hidden_by_each_of_its_names(name: str) -> None:
    assert hide_secrets({name: "geheim"}, secret_schema(Named)) == {name: HIDDEN}


def test_recursive_payloads_and_lists_are_hidden() -> None:
    assert hide_secrets({"key": "a", "parts": [{"key": "b"}]}, secret_schema(Tree)) == {
        "key": HIDDEN,
        "parts": [{"key": HIDDEN}],
    }
    assert hide_secrets(["a", "b"], secret_schema(Tokens)) == [HIDDEN, HIDDEN]
    assert secret_schema(Open) is None


def test_two_payloads_are_compared_without_their_secrets() -> None:
    before = {"token": "a", "login": LOGIN_PAYLOAD}
    after = {"token": "b", "login": LOGIN_PAYLOAD, "url": "c"}
    compared = hide_secrets(after, secret_schema(Deliver), before)
    assert compared == {"token": CHANGED, "login": HIDDEN_LOGIN, "url": "c"}


def test_an_edit_of_the_hidden_form_gets_its_secrets_back() -> None:
    schema = secret_schema(Deliver)
    before = {"url": "a", "token": "geheim", "logins": [LOGIN_PAYLOAD], "pair": ["x", "y"]}
    edited = hide_secrets(before, schema) | {"url": "b", "pair": ["x", "z"]}
    assert reveal_secrets(edited, schema, before) == {**before, "url": "b", "pair": ["x", "z"]}
    # Each item of a list gets its own secret back, at any position.
    two_logins = {"logins": [{"user": "me", "password": "a"}, {"user": "you", "password": "b"}]}
    first, second = hide_secrets(two_logins, schema)["logins"]
    for edited_list, expected in (
        ([second], [two_logins["logins"][1]]),
        ([second, first], two_logins["logins"][::-1]),
        (
            [first, second | {"user": "her"}],
            [two_logins["logins"][0], {"user": "her", "password": "b"}],
        ),
        (
            [first, second, {"user": "new", "password": "c"}],
            [*two_logins["logins"], {"user": "new", "password": "c"}],
        ),
        ([second | {"user": "her"}], [{"user": "her", "password": HIDDEN}]),
    ):
        assert reveal_secrets({"logins": edited_list}, schema, two_logins) == {"logins": expected}
    same_users = {"logins": [{"user": "me", "password": "a"}, {"user": "me", "password": "b"}]}
    assert reveal_secrets(
        {"logins": hide_secrets(same_users, schema)["logins"][:1]}, schema, same_users
    ) == {"logins": [HIDDEN_LOGIN]}
    # Without a former value the placeholder remains, and is refused: see the next test.
    assert reveal_secrets({"token": HIDDEN}, schema, {}) == {"token": HIDDEN}


@job("deliver_secretly", worker="llm", lanes=("hot",))
async def deliver(payload: Deliver, ctx: Any) -> None:
    pass


@pytest.mark.parametrize("is_loaded", [True, False])
def test_a_known_job_type_hides_secrets_and_refuses_the_placeholder(
    is_loaded: bool,
) -> None:
    job_type = job_type_of(deliver)
    if not is_loaded:
        job_type = job_type_from(record_of(job_type, "a worker"))
    registry = Registry()
    registry.set_registered([job_type], {})
    assert registry.hide_secrets("deliver_secretly", {"token": "a"}) == {"token": HIDDEN}
    assert registry.hide_secrets("unknown", {"token": "a"}) == {"token": "a"}
    job_type.validate({"token": "a", "url": HIDDEN})
    hidden = registry.hide_secrets("deliver_secretly", {"named": {"secretCode": 1}})
    assert hidden == {"named": {"secretCode": HIDDEN}}
    with pytest.raises(InvalidPayload, match="give its value"):
        job_type.validate({"login": {"user": "me", "password": HIDDEN}})
    with pytest.raises(InvalidPayload) as refused:
        job_type.validate({"login": {"user": "me", "password": ["geheim"]}, "token": 815})
    assert "token" in str(refused.value)
    assert "geheim" not in str(refused.value)
    assert "815" not in str(refused.value)


@pytest.mark.parametrize(
    ("body", "is_hidden"),
    [
        (b'{"job_type":"deliver","payload":{"token":"a"}}', True),
        (b'{"job_type":"open","payload":{"token":"a"}}', False),
        (b'{"job_type":["deliver"],"payload":{"token":"a"}}', False),
        (b'{"job_type":"deliver","payload":', False),
        (b"\xff", False),
        (b"[1]", False),
    ],
)
def test_the_message_of_a_letter_is_shown_without_secrets(body: bytes, is_hidden: bool) -> None:
    schema = secret_schema(Deliver)
    hidden_body = hide_secrets_in_message(body, lambda name: schema if name == "deliver" else None)
    if is_hidden:
        assert hidden_body == b'{"job_type": "deliver", "payload": {"token": "[hidden]"}}'
    else:
        assert hidden_body == body


class Quoting(BaseModel):
    url: str
    token: Annotated[str, Secret()]
    number: int = 0

    @field_validator("token")
    @classmethod
    def check(cls, value: str) -> str:
        if value.startswith("geheim"):
            raise ValueError(f"it is {value}")
        return value


@job("quote", worker="llm", lanes=("hot",), version=2, upgrade=lambda old: {"at": int(old["pwd"])})
async def quote(payload: Quoting, ctx: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("payload", "version"),
    [
        ({"url": "a", "token": "geheim-4711"}, 2),
        ({"url": "a", "token": "sesam-4711", "number": "x"}, 2),
        ({"token": "sesam-4711"}, 2),
        ({"url": "a", "pwd": "sesam-4711"}, 1),
    ],
)
def test_errors_of_a_payload_and_their_tracebacks_do_not_quote_its_secrets(
    payload: dict[str, Any], version: int
) -> None:
    with pytest.raises(InvalidPayload) as refused:
        job_type_of(quote).read(payload, version)
    failure = Failure.from_error(refused.value)
    assert "4711" not in failure.message + failure.traceback
    invalid_request = invalid_request_from(refused.value, by_routing_key=True)
    assert invalid_request.complaints
    assert "4711" not in repr(invalid_request.complaints)


def test_secrets_are_scrubbed_from_texts_in_any_quoting() -> None:
    schema = secret_schema(Deliver)
    payload = {"token": "a b/&ä'", "login": {"user": "me", "password": "pw"}, "url": "http://a"}
    scrubber = Scrubber.from_payload(payload, schema)
    for text in (
        "a b/&ä'",
        "http://b?t=a%20b%2F%26%C3%A4%27",
        "a+b%2F%26%C3%A4%27",
        r"a b/&\u00e4'",
    ):
        assert scrubber.scrub(f"401 for {text}!").endswith(f"{HIDDEN}!"), text
    assert (
        scrubber.scrub("http://a pw") == "http://a pw"
    )  # the password is too short to be searched for
    assert Scrubber.from_payload(payload, None).scrub("a b/&ä'") == "a b/&ä'"
    many = {"logins": [{"user": "", "password": f"word{n}"} for n in range(MAX_SCRUBBED + 1)]}
    assert Scrubber.from_payload(many, schema).scrub("it failed") == HIDDEN


@pytest.mark.parametrize(
    ("after", "is_exposed"),
    [
        ({"url": "http://a", "token": "sesam"}, False),
        ({"url": "http://b", "token": "other"}, False),
        ({"url": "http://b/?sesam", "token": "sesam"}, True),
        ({"url": "http://a", "open": {"copy": ["sesam"]}}, True),
        ({"url": "http://a", "open": {"sesam": 1}}, True),
    ],
)
def test_a_change_that_would_expose_a_secret_is_detected(
    after: dict[str, Any], is_exposed: bool
) -> None:
    schema = secret_schema(Deliver)
    before = {"url": "http://a", "token": "sesam"}
    assert exposes_secrets(before, schema, after, schema) is is_exposed
    assert (
        exposes_secrets(before, schema, before, None) is True
    )  # changed to a job type without secrets


def test_a_large_payload_is_hidden_in_linear_time() -> None:
    """Quadratic time would be minutes, beyond the time limit of a test."""
    schema = secret_schema(Deliver)
    payload = {
        "either": [""] * 20_000,
        "logins": [{"user": "", "password": ""}] * 2_000,
    }
    edited = hide_secrets(payload, schema)
    assert reveal_secrets(edited, schema, payload) == payload


def test_the_records_of_bulk_operations_are_shown_without_secrets() -> None:
    registry = Registry([job_type_of(deliver), job_type_of(quote)])
    login = {"user": "me", "password": "geheim"}
    spec = {
        "filter": {"payload": "login.password=geheim"},
        "change": {
            "merge": {"login": {"password": "geheim"}, "url": "b"},
            "values": {"payload.logins.0.password": "geheim", "payload.url": "b", "priority": 3},
        },
        "payload": {"login": login, "item": "{item}"},
        "then_payload": {"token": "geheim"},
    }
    operation = bulk_operation(spec, "payload login.password=geheim")
    shown = shown_operation(registry, operation)
    assert "geheim" not in repr(shown)
    assert shown.title == f"payload login.password={HIDDEN}"
    assert shown.spec["change"]["values"] == {
        "payload.logins.0.password": HIDDEN,
        "payload.url": "b",
        "priority": 3,
    }
    assert shown.spec["payload"] == {"login": HIDDEN_LOGIN, "item": "{item}"}
    assert "geheim" in repr(operation)
    plain = bulk_operation({"filter": {"payload": "url=b"}, "change": {"merge": {"a": 1}}}, "it")
    assert shown_operation(registry, plain) == plain


def bulk_operation(spec: dict[str, Any], title: str) -> BulkOperation:
    unset: dict[str, Any] = dict.fromkeys(each.name for each in fields(BulkOperation))
    return BulkOperation(**{**unset, "id": "rerun-1", "title": title, "spec": spec})
