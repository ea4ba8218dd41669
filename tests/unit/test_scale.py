"""`jobctl up --scale`: valid values, and errors for all others."""

import pytest

from switchyard.cli.base.errors import WrongUsage
from switchyard.cli.system.local_system import MAX_PROCESSES, parse_scale
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.wings import job_modules


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.load(job_modules())


def test_each_kind_gets_the_last_number_given_for_it(registry: Registry) -> None:
    assert parse_scale(["llm=6", "ocr=0", "llm=2"], registry) == {"llm": 2, "ocr": 0}
    assert parse_scale([], registry) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("painter=2", "there is no 'painter' among ingest"),
        ("llm", "write llm=N"),
        ("llm=-1", "write llm=N"),
        ("llm=1.5", "write llm=N"),
        ("llm=²", "write llm=N"),
        (f"llm={MAX_PROCESSES + 1}", f"from 0 to {MAX_PROCESSES}"),
    ],
)
def test_an_invalid_number_of_workers_is_refused(
    registry: Registry, text: str, message: str
) -> None:
    with pytest.raises(WrongUsage, match=message):
        parse_scale([text], registry)
