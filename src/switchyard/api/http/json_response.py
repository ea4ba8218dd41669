"""Answers as JSON, whatever they hold: one odd value must not hide a whole listing."""

from __future__ import annotations

import json
import math
from typing import Any

from fastapi.responses import JSONResponse


class JsonResponse(JSONResponse):
    """JSON also of what a handler has stored that JSON can't say: half of a surrogate pair stays
    escaped, NaN and infinity become null."""

    def render(self, content: Any) -> bytes:
        try:
            text = _encode(content)
        except ValueError:
            text = _encode(_finite(content))
        return text.encode("utf-8", "backslashreplace")  # as JSON writes them, too


def _encode(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return value
