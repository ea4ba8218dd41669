"""When the summary of a document is made anew, as the settings have changed."""

from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.workers.summaries import TEXT_BUDGET, method_key

SERVER = {"name": "own", "base_url": "http://127.0.0.1:9/v1", "model": "m"}


def settings_with(**more: object) -> Settings:
    return Settings.model_validate({"llm_providers": [{**SERVER, **more}]})


def test_a_summary_depends_on_the_context_of_a_server_only_if_its_text_is_cut_for_that() -> None:
    without, small, large = (
        settings_with(),
        settings_with(context_length=2_000),
        settings_with(context_length=4_000),
    )
    for short in (100, 3_000):
        assert method_key(small, short) == method_key(large, short) == method_key(without, short)
    assert method_key(small, 5_000) != method_key(large, 5_000) == method_key(without, 5_000)
    keys = {tuple(method_key(each, TEXT_BUDGET + 1)) for each in (without, small, large)}
    assert len(keys) == 3
    assert method_key(settings_with(model="other"), 100) != method_key(without, 100)
