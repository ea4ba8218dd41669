"""Results of jobs in the form of OpenAI's API."""

from typing import get_args

import pytest

from switchyard.api.models.openai import BatchBody
from switchyard.services.llm.llm_queue import LlmResult, LlmStatus
from switchyard.services.llm.openai_form import BATCH_URLS, ENDPOINTS, answer_of


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("/v1/chat/completions", "chat.completion"),
        ("/v1/completions", "text_completion"),
        ("/v1/embeddings", "list"),
        ("/v1/responses", "response"),
    ],
)
def test_each_endpoint_answers_with_its_kind_of_object(url: str, kind: str) -> None:
    result = LlmResult("job-1", LlmStatus.COMPLETED, {"model": "m", "completion": {}})
    answer = answer_of(url, {}, result)
    assert answer["object"] == kind
    assert ("created_at" in answer) == (url == "/v1/responses")
    assert ("created" in answer) == ("completions" in url)


def test_all_four_endpoints_may_be_used_in_a_batch() -> None:
    assert len(ENDPOINTS) == 4
    assert get_args(BatchBody.model_fields["endpoint"].annotation) == BATCH_URLS
