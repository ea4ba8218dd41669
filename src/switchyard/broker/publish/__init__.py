"""Publishing: confirmed, mandatory and persistent; from asyncio and from scripts."""
