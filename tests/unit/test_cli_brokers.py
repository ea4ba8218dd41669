"""Which broker `jobctl demo` and `jobctl up` take."""

import shutil
from pathlib import Path

import pytest
from pydantic import SecretStr

from switchyard.cli.base.errors import CommandFailed
from switchyard.cli.system import local_broker as brokers
from switchyard.cli.system import rabbitmq_node as node
from switchyard.services.common.settings import Settings


async def _nobody() -> bool:
    return False


def test_the_one_that_is_set_is_taken(tmp_path: Path) -> None:
    settings = Settings(amqp_url=SecretStr("amqp://u:secret@example.org:5673/x"))
    with brokers.find_or_start_broker(settings, tmp_path, lambda text: None) as found:
        assert found.amqp_url == "amqp://u:secret@example.org:5673/x"
        assert not found.is_private
        assert "secret" not in found.what + repr(found)


def test_with_nothing_at_hand_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "_accepts_guest", _nobody)
    monkeypatch.setattr(node, "find_installed", lambda: None)
    monkeypatch.setattr(brokers, "_can_install", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    settings = Settings(amqp_url=None)
    with (
        pytest.raises(CommandFailed, match="apt-get install rabbitmq-server"),
        brokers.find_or_start_broker(settings, tmp_path, lambda text: None),
    ):
        pass


def test_a_host_without_the_name_localhost_is_told_what_to_add() -> None:
    log = "BOOT FAILED\nERROR: epmd error for host localhost: nxdomain (non-existing domain)"
    assert "/etc/hosts needs `127.0.0.1 localhost`" in node.start_remedy(log)
    assert not node.start_remedy("BOOT FAILED\nerror: no_such_setting")
