"""Sign messages, and check signatures: HMAC SHA-256 by a secret that both sides know, in the form
that GitHub uses.

What we send (alerts, notices) and what we receive (webhooks) is signed in the same way.
"""

from __future__ import annotations

import hashlib
import hmac
import re

PREFIX = "sha256="
HEADER = "X-Switchyard-Signature"
"""The header with our signature."""


def signature(body: bytes, secret: str, *, prefix: str = PREFIX) -> str:
    """Return the value of the header: the prefix and hexadecimal digits."""
    return prefix + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def may_be_signature(signature: str, *, prefix: str = PREFIX) -> bool:
    """Tell whether a text has the form of a signature."""
    digits = signature.strip().removeprefix(prefix)
    return (
        signature.strip().startswith(prefix) and re.fullmatch(r"[0-9a-f]{64}", digits) is not None
    )


def is_signed(body: bytes, sent_signature: str, secret: str, *, prefix: str = PREFIX) -> bool:
    """Tell whether the signature is that of these bytes, in constant time."""
    expected = signature(body, secret, prefix=prefix).encode()
    return hmac.compare_digest(expected, sent_signature.strip().encode("utf-8", "replace"))
