"""Certificates for one test: an authority, and a server's that it has signed."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

DAYS = "2"


@dataclass(frozen=True)
class Certificates:
    """Files in PEM. The server's certificate is for 127.0.0.1 and localhost."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(directory: Path) -> Certificates:
    """Make certificates with openssl, which comes with PostgreSQL's package."""
    directory.mkdir(parents=True, exist_ok=True)
    certificates = Certificates(
        directory / "ca.pem", directory / "server.pem", directory / "server.key"
    )
    authority_key, request = directory / "ca.key", directory / "server.csr"
    names = directory / "names"
    names.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    # An RSA key takes up to half a second of processor time.
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    request_options = ["req", *key, "-nodes", "-days", DAYS]
    _openssl(*request_options, "-x509", "-subj", "/CN=authority", "-keyout", authority_key, "-out",
             certificates.authority)  # fmt: skip
    _openssl(
        *request_options[:-2],
        "-subj",
        "/CN=localhost",
        "-keyout",
        certificates.key,
        "-out",
        request,
    )
    signed_by = ["-CA", certificates.authority, "-CAkey", authority_key, "-CAcreateserial"]
    _openssl("x509", "-req", "-in", request, *signed_by, "-days", DAYS, "-extfile", names, "-out",
             certificates.certificate)  # fmt: skip
    return certificates


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
