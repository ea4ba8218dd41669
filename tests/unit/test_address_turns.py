import pytest

from switchyard.services.common.files.address_limiter import AddressLimiter, network_of


@pytest.mark.parametrize(
    ("address", "owner"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2::3", "2001:db8:1::/48"),
        ("2001:db8:1:ffff::1", "2001:db8:1::/48"),
        ("fe80::1%eth0", "fe80::/48"),
    ],
)
def test_addresses_of_one_network_have_one_owner(address: str, owner: str) -> None:
    assert network_of(address) == owner


def test_an_address_has_a_limited_number_of_turns_and_each_is_returned() -> None:
    turns = AddressLimiter(2)
    for _ in range(2):
        with turns.hold("192.0.2.7") as first, turns.hold("192.0.2.7") as second:
            assert (first, second) == (True, True)
            with turns.hold("192.0.2.7") as third, turns.hold("192.0.2.8") as of_other_address:
                assert (third, of_other_address) == (False, True)
