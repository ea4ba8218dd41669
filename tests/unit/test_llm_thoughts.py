"""A model's reasoning is separated from its answer, for all marks that models use."""

from __future__ import annotations

import time

import pytest

from switchyard.services.llm.thought_filter import ThoughtFilter, without_thoughts

HARMONY = (
    "<|channel|>analysis<|message|>The user asks.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>Water.<|return|>"
)
# Texts whose answer is "Water.", texts without reasoning, and texts with nothing else.
REASONING_AND_ANSWER = [
    "Water.",
    "<think>Hmm.</think>Water.",
    "\n<think>\nHmm.\n</think>\n\nWater.",
    "<THINK>Hmm.</THINK> Water.",
    "<thinking>Hmm.</thinking>Water.",
    "<reasoning>Hmm.</reasoning>\nWater.",
    '<thought depth="3">Hmm.</thought>Water.',
    "<seed:think>Hmm.</seed:think>Water.",
    "<think></think>Water.",
    "<think>a</think><think>b</think>Water.",
    "<think>I write <think> and </think> around it.</think>Water.",
    "Hmm, the sea.</think>Water.",
    "Hmm, the sea. </think> Water.",
    "Hmm.\n\nYes.\n</thinking>\n\nWater.",
    'They call it "water"</think>Water.',
    "Hmm.[/THINK]Water.",
    "[THINK]Hmm.[/THINK]Water.",
    "[think]Hmm.[/think]Water.",
    "◁think▷Hmm.◁/think▷Water.",
    "<|START_THINKING|>Hmm.<|END_THINKING|><|START_RESPONSE|>Water.<|END_RESPONSE|>",
    "<|begin_of_thought|>Hmm.<|end_of_thought|><|begin_of_solution|>Water.<|end_of_solution|>",
    "<|channel>thought\nHmm.<channel|>Water.",
    "<unused94>thought\nHmm.<unused95>Water.",
    "<think>Hmm.</think><answer>Water.</answer>",
    "<think>Hmm.</think><|begin_of_box|>Water.<|end_of_box|>",
    HARMONY,
    HARMONY.removesuffix("<|return|>"),
    "<|start|>assistant" + HARMONY,
    "The user asks.<|end|><|start|>assistant<|channel|>final<|message|>Water.",
    "<|channel|>final <|constrain|>json<|message|>Water.",
    (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>"
        "Hm.<|end|><|start|>assistant<|channel|>final<|message|>Water."
    ),
    "analysisThe user asks what it is.assistantfinalWater.",
    "Water.\n<think>Is it? Yes.</think>\n",
    "Water.\n<think>Is it? I",
]
ANSWER_ALONE = [
    "Models write <think>…</think> before they answer.",
    "The mark `</think>` ends it.",
    'It ends with "</think>", as a rule.',
    "```html\n<think>\n</think>\n```\nis how it looks.",
    '{"quote": "it ends with </think> at last"}',
    '["<think>", "</think>"]',
    "<answer>Water.</answer>",
    "<p>Water</p> is < steam, and [TH] is thorium",
    "analysis of water",
    "analysis",
    "a <",
    "see `",
    "[1] Water. [2",
]
REASONING_ALONE = [
    "",
    " \n",
    "<think>Hmm.</think>",
    "<think>Hmm.",
    "<think>Hmm.</thi",
    "Hmm.</think>\n",
    "[THINK]Hmm.",
    "<|channel|>analysis<|message|>The user asks.",
    "<|channel|>analysis<|message|>The user asks.<|end|>",
    "analysisThe user asks.",
]


def read_in_pieces(text: str, size: int) -> tuple[str, str]:
    """Read a text in pieces of this size; return the answer, and the text that was streamed."""
    streamed: list[str] = []
    reader = ThoughtFilter(streamed.append, streamed.clear)
    for start in range(0, len(text), size):
        reader.take(text[start : start + size])
    return reader.end(), "".join(streamed)


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
@pytest.mark.parametrize("text", REASONING_AND_ANSWER)
def test_reasoning_is_removed_from_the_answer(text: str, size: int) -> None:
    answer, streamed = read_in_pieces(text, size)
    assert answer == streamed.strip() == "Water."


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
@pytest.mark.parametrize("text", ANSWER_ALONE)
def test_an_answer_that_mentions_the_marks_is_unchanged(text: str, size: int) -> None:
    assert read_in_pieces(text, size) == (text, text)


@pytest.mark.parametrize("size", [1, 10_000])
@pytest.mark.parametrize("text", REASONING_ALONE)
def test_reasoning_alone_is_no_answer(text: str, size: int) -> None:
    assert read_in_pieces(text, size) == ("", "")


@pytest.mark.parametrize("text", [*REASONING_AND_ANSWER, *ANSWER_ALONE])
def test_filtering_twice_changes_nothing_more(text: str) -> None:
    assert without_thoughts(without_thoughts(text)) == without_thoughts(text)


@pytest.mark.parametrize("size", [40, 2_000_000])
@pytest.mark.parametrize(
    "part",
    [
        "<",
        "<think>",
        "</think>",
        "x</think>",
        "<think",
        "```",
        "<|channel|>",
        "[/THINK",
        "analysis",
    ],
)
def test_any_text_is_read_quickly(part: str, size: int) -> None:
    began = time.process_time()
    read_in_pieces((part * 200_000)[:200_000], size)
    assert time.process_time() - began < 2.5
