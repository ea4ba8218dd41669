"""`jobctl api` with a certificate."""

from pathlib import Path

from tests.acceptance.conftest import CommandLine
from tests.support.certificates import make_certificates


def test_a_certificate_without_its_key_is_refused_in_one_line(
    bare: CommandLine, tmp_path: Path
) -> None:
    certificates, stranger = (make_certificates(tmp_path / name) for name in ("ours", "stranger"))
    bare.environment["JOBS_API_TLS_CERT"] = str(certificates.certificate)
    assert "JOBS_API_TLS_KEY" in bare.fails("api", "--port", "0")
    bare.environment["JOBS_API_TLS_KEY"] = str(stranger.key)
    assert "can't use JOBS_API_TLS_CERT" in bare.fails("api", "--port", "0")
