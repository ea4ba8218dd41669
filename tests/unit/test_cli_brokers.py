"""Which broker `jobctl demo` and `jobctl up` use."""

import shutil
from pathlib import Path

import pytest
from pydantic import SecretStr

from switchyard.cli.base.errors import CommandFailed
from switchyard.cli.system import local_broker, rabbitmq_node
from switchyard.services.common.settings import Settings


async def _is_missing() -> bool:
    return False


def test_the_configured_broker_is_used(tmp_path: Path) -> None:
    settings = Settings(amqp_url=SecretStr("amqp://u:secret@example.org:5673/x"))
    with local_broker.find_or_start_broker(settings, tmp_path, lambda text: None) as broker:
        assert broker.amqp_url == "amqp://u:secret@example.org:5673/x"
        assert not broker.is_private
        assert "secret" not in broker.what + repr(broker)


def test_without_any_broker_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_broker, "_accepts_guest", _is_missing)
    monkeypatch.setattr(rabbitmq_node, "find_installed", lambda: None)
    monkeypatch.setattr(local_broker, "_can_install", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    settings = Settings(amqp_url=None)
    with (
        pytest.raises(CommandFailed, match="apt-get install rabbitmq-server"),
        local_broker.find_or_start_broker(settings, tmp_path, lambda text: None),
    ):
        pass


def test_the_remedy_for_a_missing_localhost_names_the_line_to_add() -> None:
    log = "BOOT FAILED\nERROR: epmd error for host localhost: nxdomain (non-existing domain)"
    assert "/etc/hosts needs `127.0.0.1 localhost`" in rabbitmq_node.start_remedy(log)
    assert not rabbitmq_node.start_remedy("BOOT FAILED\nerror: no_such_setting")
