"""Authorities' certificates are loaded once per process, and again after SSL_CERT_FILE changes."""

import ssl
from pathlib import Path

import pytest

from switchyard.broker.management.http import ManagementHttp
from switchyard.broker.tls import authorities
from tests.support.certificates import make_certificates


def test_all_clients_share_one_tls_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert authorities() is authorities()
    assert authorities().verify_mode is ssl.CERT_REQUIRED
    assert authorities().check_hostname


def test_a_new_file_of_authorities_is_used_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default_context = authorities()
    certificates = make_certificates(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    assert authorities() is not default_context
    assert len(authorities().get_ca_certs()) == 1


async def test_authorities_are_loaded_for_encrypted_connections_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "there-is-none.pem"))
    await ManagementHttp("http://localhost:15672", timeout=1, transport=None).close()
    with pytest.raises(FileNotFoundError):
        ManagementHttp("https://localhost:15671", timeout=1, transport=None)
