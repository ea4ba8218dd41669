"""`--rate`: its syntax, which is the same in every command that has it."""

import pytest

from switchyard.cli.base.errors import WrongUsage
from switchyard.cli.engine.bulk.rates import parse_new_rate, parse_rate
from tests.support.command_tree import command_tree


@pytest.mark.parametrize(
    ("text", "rate"), [("50/s", 50), ("90/m", 1.5), ("36/h", 0.01), ("50", 50), ("0.5", 0.5)]
)
def test_a_rate_is_a_number_per_unit_or_per_second(text: str, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "fast", "5/d", "5/", "-1", "nan", "inf", "0", "1e9/s"])
def test_an_invalid_rate_is_refused_with_examples(text: str) -> None:
    with pytest.raises(WrongUsage, match="50/s, 100/m or 20/h"):
        parse_rate(text)


@pytest.mark.parametrize(("text", "rate"), [("0", None), ("0/s", None), ("3/m", 0.05)])
def test_a_rate_of_zero_removes_the_limit(text: str, rate: float | None) -> None:
    assert parse_new_rate(text) == (None if rate is None else pytest.approx(rate))


def test_rate_and_why_have_one_placeholder_in_all_commands() -> None:
    placeholders: dict[str, set[str]] = {"--rate": set(), "--why": set()}

    def visit(command: object) -> None:
        for each in getattr(command, "commands", {}).values():
            visit(each)
        for parameter in getattr(command, "params", ()):
            for name in placeholders.keys() & set(parameter.opts):
                placeholders[name].add(str(parameter.metavar))

    visit(command_tree())
    assert {option: len(names) for option, names in placeholders.items()} == {
        "--rate": 1,
        "--why": 1,
    }
