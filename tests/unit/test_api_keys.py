import pytest

from switchyard.api.addresses import client_at, is_loopback
from switchyard.services.engine.access.api_keys import (
    InvalidKeySetting,
    NewKey,
    Principal,
    Scope,
    configured_keys,
    hash_of,
)

KEY = "0123456789abcdef0123456789abcdef"


def test_a_key_of_the_settings_has_every_scope_unless_some_are_named() -> None:
    other_key = KEY[::-1]
    principals = configured_keys(f" {KEY} , {other_key}:read+publish,")
    assert principals[hash_of(KEY)].scopes == frozenset(Scope)
    assert principals[hash_of(other_key)].scopes == {Scope.READ, Scope.PUBLISH}
    assert len({principal.id for principal in principals.values()}) == 2


@pytest.mark.parametrize("text", ["short", f"{KEY}:write", f"{KEY}:", f"{KEY},short:read"])
def test_a_key_that_can_not_be_used_is_refused_without_being_named(text: str) -> None:
    with pytest.raises(InvalidKeySetting) as caught:
        configured_keys(text)
    assert KEY not in str(caught.value)
    assert "short:" not in str(caught.value)


def test_admin_has_every_scope_and_other_principals_their_own() -> None:
    admin = Principal("a", frozenset({Scope.ADMIN}))
    reader = Principal("r", frozenset({Scope.READ}))
    assert all(admin.may(scope) for scope in Scope)
    assert [reader.may(scope) for scope in Scope] == [False, True, False]


def test_a_new_key_is_not_shown_by_accident() -> None:
    assert "secret" not in repr(NewKey("id", "secret"))


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.evil.example", False),
        ("evil.example", False),
        ("", False),
    ],
)
def test_only_this_machine_is_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(
    ("host", "client"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unknown", "unknown"),
    ],
)
def test_a_network_that_one_customer_has_is_one_client(host: str, client: str) -> None:
    assert client_at(host) == client
