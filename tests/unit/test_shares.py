"""Sharing a limited amount between clients."""

import pytest

from switchyard.services.engine.access.shares import Shares


def take_all(shares: Shares, client: str) -> int:
    """Take 1 as often as the client can, and return how often."""
    count = 0
    while shares.take(client, 1):
        count += 1
    return count


def test_a_client_gets_at_most_half_of_what_the_others_leave() -> None:
    shares = Shares(200)
    assert take_all(shares, "first") == 100
    assert take_all(shares, "second") == 50
    assert not shares.take("first", 1)
    assert shares.take("third", 1)


def test_an_amount_given_back_can_be_taken_again() -> None:
    shares = Shares(10)
    assert shares.take("first", 4)
    assert not shares.take("first", 4)
    shares.give_back("first", 4)
    assert shares.used == 0
    assert shares.take("first", 4)


@pytest.mark.parametrize("amount", [1, 1_000])
def test_the_first_client_is_never_refused(amount: int) -> None:
    shares = Shares(1)
    assert shares.take("first", amount)
    assert not shares.take("first", 1)
    assert not shares.take("second", 1)


def test_a_group_takes_its_share_as_one_client() -> None:
    whole = Shares(100)
    group = Shares(50, parent=whole, name="group")
    for member in range(100):
        group.take(str(member), 5)
    assert whole.used == group.used <= 50
    assert whole.take("another", 25)
    group.give_back("0", 5)
    assert whole.used == group.used + 25
