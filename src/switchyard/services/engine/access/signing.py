"""The signature of a message: the HMAC SHA-256 of its bytes, by a secret that both sides know.

The same for what we tell others (alerts, notices) and for what others tell us (webhooks): the form
that GitHub and many others use.
"""

from __future__ import annotations

import hashlib
import hmac
import re

PREFIX = "sha256="
HEADER = "X-Switchyard-Signature"
"""The header in which we sign."""


def signature(body: bytes, secret: str, *, prefix: str = PREFIX) -> str:
    """Return the value of the header: the prefix and hexadecimal digits."""
    return prefix + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def may_be_signature(signature: str, *, prefix: str = PREFIX) -> bool:
    """Tell whether that has the form of one, whatever it signs."""
    digits = signature.strip().removeprefix(prefix)
    return (
        signature.strip().startswith(prefix) and re.fullmatch(r"[0-9a-f]{64}", digits) is not None
    )


def is_signed(body: bytes, sent_signature: str, secret: str, *, prefix: str = PREFIX) -> bool:
    """Tell whether the signature is that of these bytes; takes as long for a wrong one."""
    expected = signature(body, secret, prefix=prefix).encode()
    return hmac.compare_digest(expected, sent_signature.strip().encode("utf-8", "replace"))
