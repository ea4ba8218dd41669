"""Lists of words, journals, publishers and places, which lie beside these modules."""

from functools import cache
from importlib.resources import files


@cache
def listed(name: str) -> tuple[str, ...]:
    """The lines of a list beside this module, without its comments."""
    text = (
        files("benchmarks.citations").joinpath("lists", f"{name}.txt").read_text(encoding="utf-8")
    )
    return tuple(
        line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")
    )


@cache
def words(language: str) -> tuple[str, ...]:
    """Words of a language that titles are made of."""
    return tuple(" ".join(listed(f"words.{language}")).split())
