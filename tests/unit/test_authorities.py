"""Certificates of authorities are loaded once a process, and anew where others are named."""

import ssl
from pathlib import Path

import pytest

from switchyard.broker.management.http import ManagementHttp
from switchyard.broker.tls import authorities
from tests.support.certificates import make_certificates


def test_all_clients_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert authorities() is authorities()
    assert authorities().verify_mode is ssl.CERT_REQUIRED
    assert authorities().check_hostname


def test_another_file_of_authorities_counts_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = authorities()
    made = make_certificates(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.authority))
    assert authorities() is not before
    assert len(authorities().get_ca_certs()) == 1


async def test_they_are_loaded_where_something_is_encrypted_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "there-is-none.pem"))
    await ManagementHttp("http://localhost:15672", timeout=1, transport=None).close()
    with pytest.raises(FileNotFoundError):
        ManagementHttp("https://localhost:15671", timeout=1, transport=None)
