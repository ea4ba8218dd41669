"""For which changes of the settings the summary of a document is made again."""

from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.workers.summaries import TEXT_BUDGET, method_key

SERVER = {"name": "own", "base_url": "http://127.0.0.1:9/v1", "model": "m"}


def make_settings(**server_fields: object) -> Settings:
    return Settings.model_validate({"llm_providers": [{**SERVER, **server_fields}]})


def test_a_summary_depends_on_the_context_of_a_server_only_if_its_text_is_cut_for_that() -> None:
    without_length, small_context, large_context = (
        make_settings(),
        make_settings(context_length=2_000),
        make_settings(context_length=4_000),
    )
    for text_length in (100, 3_000):
        assert (
            method_key(small_context, text_length)
            == method_key(large_context, text_length)
            == method_key(without_length, text_length)
        )
    assert (
        method_key(small_context, 5_000)
        != method_key(large_context, 5_000)
        == method_key(without_length, 5_000)
    )
    keys = {
        tuple(method_key(each, TEXT_BUDGET + 1))
        for each in (without_length, small_context, large_context)
    }
    assert len(keys) == 3
    assert method_key(make_settings(model="other"), 100) != method_key(without_length, 100)
