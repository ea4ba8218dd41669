"""What to do about a server whose certificate is not accepted."""

from __future__ import annotations

REFUSED = "CERTIFICATE_VERIFY_FAILED"
"""In what OpenSSL says of one that has expired, is another host's, or is signed by nobody known."""


def remedy(error: Exception, setting: str) -> str | None:
    """For the server that `setting` names; None where its certificate is not the cause."""
    if REFUSED not in str(error):
        return None
    return (
        "renew the server's certificate where it has expired, and have the server load it; else "
        "see whether this host's clock is right (`date`), and the authority and the host in "
        f"{setting}: docs/deploy.md#tls"
    )
