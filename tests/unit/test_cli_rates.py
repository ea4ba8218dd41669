"""`--rate` means the same in every command that has it."""

import pytest

from switchyard.cli.base.errors import WrongUsage
from switchyard.cli.engine.bulk.rates import parse_new_rate, parse_rate
from tests.support.command_tree import command_tree


@pytest.mark.parametrize(
    ("text", "rate"), [("50/s", 50), ("90/m", 1.5), ("36/h", 0.01), ("50", 50), ("0.5", 0.5)]
)
def test_a_rate_is_a_number_for_a_unit_or_for_each_second(text: str, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "fast", "5/d", "5/", "-1", "nan", "inf", "0", "1e9/s"])
def test_what_is_no_rate_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(WrongUsage, match="50/s, 100/m or 20/h"):
        parse_rate(text)


@pytest.mark.parametrize(("text", "rate"), [("0", None), ("0/s", None), ("3/m", 0.05)])
def test_a_rate_can_be_taken_away(text: str, rate: float | None) -> None:
    assert parse_new_rate(text) == (None if rate is None else pytest.approx(rate))


def test_rate_and_why_mean_the_same_wherever_they_are() -> None:
    seen: dict[str, set[str]] = {"--rate": set(), "--why": set()}

    def visit(command: object) -> None:
        for each in getattr(command, "commands", {}).values():
            visit(each)
        for parameter in getattr(command, "params", ()):
            for name in seen.keys() & set(parameter.opts):
                seen[name].add(str(parameter.metavar))

    visit(command_tree())
    assert {name: len(kinds) for name, kinds in seen.items()} == {"--rate": 1, "--why": 1}
