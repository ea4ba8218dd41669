"""Numbers of things, as people say them."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 job`, `1,200 jobs`; `plural` where it is not the noun with an `s`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
