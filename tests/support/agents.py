"""An agent's client of `jobctl mcp`."""

import json
from typing import Any

from mcp import Client


async def called(client: Client, tool: str, **arguments: Any) -> tuple[bool, Any]:
    """Call a tool. Return whether it succeeded, and its answer."""
    result = await client.call_tool(tool, arguments)
    text = "".join(getattr(each, "text", "") for each in result.content)
    return not result.is_error, text if result.is_error else json.loads(text)
