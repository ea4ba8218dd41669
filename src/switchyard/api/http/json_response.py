"""Answers as JSON, whatever they hold: one odd value must not hide a whole listing."""

from __future__ import annotations

from typing import Any

from fastapi.responses import JSONResponse

from switchyard.services.common.printable import to_json


class JsonResponse(JSONResponse):
    """JSON also of what a handler has stored that JSON can't say: half of a surrogate pair stays
    escaped, NaN and infinity become null."""

    def render(self, content: Any) -> bytes:
        text = to_json(content, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")  # as JSON writes them, too
