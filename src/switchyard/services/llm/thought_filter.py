"""Separate an answer from the reasoning that a model writes around it.

Servers that know their model send its reasoning in a field of its own. Others send it as text,
between marks that each family of models has of its own, and often without the opening one, which
was part of the prompt. The text is hostile: each character is looked at a bounded number of times,
and no more than `_MAX_HELD` characters wait for the rest of a mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_TAG_NAMES = (
    "think|thinking|thought|thoughts|thought_process|reasoning|reasoning_content|reflection|"
    "analysis|scratchpad"
)
_BARE_CLOSE = "assistantfinal"
"""The closing mark of gpt-oss where its special tokens are left out (`bare`); the opening one is
`analysis`."""
_MAX_HELD = 128
"""Characters that are held back because they may be the beginning of a mark."""
_MAX_HEADER = 200
"""Characters between the marks of a message's head in OpenAI's harmony format."""
_MARK = re.compile(
    rf"""
    <(?:[a-z]{{1,8}}:)?(?P<open>{_TAG_NAMES})(?:\s[^<>]{{0,80}})?>
    | </(?:[a-z]{{1,8}}:)?(?P<close>{_TAG_NAMES})\s{{0,8}}>
    | (?P<open_mistral>\[THINK\]) | (?P<close_mistral>\[/THINK\])
    | (?P<open_kimi>◁think▷) | (?P<close_kimi>◁/think▷)
    | (?P<open_cohere><\|START_THINKING\|>) | (?P<close_cohere><\|END_THINKING\|>)
    | (?P<open_thought><\|begin_of_thought\|>) | (?P<close_thought><\|end_of_thought\|>)
    | (?P<open_inner><\|inner_prefix\|>) | (?P<close_inner><\|inner_suffix\|>)
    | (?P<open_gemma><\|channel>thought) | (?P<close_gemma><channel\|>)
    | (?P<open_unused><unused94>) | (?P<close_unused><unused95>)
    | (?P<open_bare>(?-i:analysis(?=[A-Z"“]))) | (?P<close_bare>(?-i:{_BARE_CLOSE}))
    | (?P<start><\|start\|>) | (?P<channel><\|channel\|>) | (?P<message><\|message\|>)
    | (?P<end><\|(?:end|return|call)\|>)
    | (?P<frame></?answer>|<\|(?:START_RESPONSE|END_RESPONSE|begin_of_solution|end_of_solution
        |begin_of_box|end_of_box)\|>)
    | (?P<fence>```)
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""The marks of `<think>` and its like, Magistral, Kimi, Command, OpenThinker, Apertus, Gemma,
MedGemma, gpt-oss (harmony, and what is left of it without its special tokens), frames of answers,
and fences of code, in which nothing is a mark."""
_MARK_PARTS = ("<", "`", "[", "◁", "analysis", _BARE_CLOSE)
"""Each mark has one of these parts. Most pieces of an answer have none, and are not searched for
marks."""
_MAY_BEGIN = re.compile(
    r"(?:<[^<>\n]{0,100}|<\|channel>[a-z]{0,6}|\[/?[a-z]{0,5}|◁/?[a-z]{0,5}|`{1,2})\Z",
    re.IGNORECASE,
)
"""The end of a piece that may be the beginning of a mark."""
_OPENING_QUOTES = "`'\"“‘«("
_CLOSING_QUOTES = "`'\"”’»)"


def _may_have_mark(text: str) -> bool:
    return any(part in text for part in _MARK_PARTS)


class ThoughtFilter:
    """Takes the text of one answer in pieces, and passes on the answer without reasoning."""

    def __init__(
        self,
        on_text: Callable[[str], None] = lambda text: None,
        restart: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_text` gets each piece of the answer as soon as it is known to be no reasoning;
        `restart` is called when the text that it got turns out to be reasoning that had no opening
        mark."""
        self._pass_on = on_text
        self._restart = restart
        self._answer: list[str] = []
        self._held_text = ""
        self._text_before = "\n"
        """The last characters that were passed on; a line break after a mark that was dropped."""
        self._open_mark: str | None = None
        """Name of the mark that has opened the reasoning which is being read; None in the
        answer."""
        self._header: str | None = None
        """The head of a message of the harmony format, as far as it has been read; None outside of
        one."""
        self._is_harmony = False
        self._is_fenced = False
        self._is_data = False
        """Whether the answer is JSON, in which marks are part of the text."""
        self._is_framed = False
        """Whether a mark such as `<answer>` has opened the answer: the closing one is dropped."""
        self._quoted_openings: dict[str, int] = {}
        """Opening marks that are part of the answer, by name; as many closing marks are, too."""
        self.had_thoughts = False
        self.started_in_reasoning = False
        """Whether the reasoning had no opening mark."""

    def take(self, text: str) -> None:
        """Read the next piece of the text."""
        self._read(self._held_text + text, is_last=False)

    def end(self) -> str:
        """Return the answer; empty if there was only reasoning."""
        self._read(self._held_text, is_last=True)
        if self._header is not None:  # no head of a message, but text that looks like one
            self._give_back_header()
        return "".join(self._answer).strip()

    def _read(self, text: str, *, is_last: bool) -> None:
        position = 0
        self._held_text = ""
        for mark in _MARK.finditer(text) if _may_have_mark(text) else ():
            if not is_last and mark.end() == len(text) and mark.lastgroup != "fence":
                self._take_text(text[position : mark.start()])
                # The next character tells whether the mark is quoted.
                self._held_text = text[mark.start() :]
                return
            self._take_text(text[position : mark.start()])
            next_character = text[mark.end() : mark.end() + 1]
            if not self._take_mark(mark, next_character):
                self._take_text(mark[0])
            position = mark.end()
        text_left = text[position:]
        if self._open_mark == "bare" and not is_last:
            self._held_text = text_left[-len(_BARE_CLOSE) :]
            return
        possible_mark = (
            None if is_last else _MAY_BEGIN.search(text_left, max(0, len(text_left) - _MAX_HELD))
        )
        if (
            possible_mark is None
            and not is_last
            and self._is_at_beginning
            and _may_begin_bare(text_left)
        ):
            self._held_text = text_left
            return
        self._take_text(text_left if possible_mark is None else text_left[: possible_mark.start()])
        self._held_text = "" if possible_mark is None else possible_mark[0]

    @property
    def _is_at_beginning(self) -> bool:
        """Whether nothing of the answer or of reasoning has come."""
        return not self._answer and self._open_mark is None and self._header is None

    def _take_text(self, text: str) -> None:
        """Add text without marks to what is being read: a message's head, reasoning, the answer."""
        if not text:
            return
        if self._header is not None:
            self._header += text
            if len(self._header) > _MAX_HEADER:
                self._give_back_header()
            return
        if self._open_mark is not None:
            self.had_thoughts = self.had_thoughts or bool(text.strip())
            return
        if not self._answer:
            text = text.lstrip()
            if not text:
                return
            self._is_data = text[0] in "{["
        self._text_before = (self._text_before + text)[-80:]
        self._answer.append(text)
        self._pass_on(text)

    def _give_back_header(self) -> None:
        header, self._header = self._header or "", None
        self._take_text(header)

    def _take_mark(self, mark: re.Match[str], next_character: str) -> bool:
        """Act on a mark; `next_character` is the character behind it. Returns False if it is part
        of the answer."""
        mark_kind = mark.lastgroup or ""
        if mark_kind == "fence":
            if self._open_mark is None and self._header is None:
                self._is_fenced = not self._is_fenced
            return False
        if self._open_mark is not None:
            return self._take_mark_in_reasoning(mark_kind, mark)
        if self._header is not None:
            return self._take_mark_in_header(mark_kind)
        if self._is_fenced or self._is_quoted(next_character):
            return False
        if mark_kind == "frame":
            return self._take_frame(mark[0])
        if self._is_harmony and mark_kind == "end":
            return True
        if self._is_data and not self._is_harmony:
            return False
        if mark_kind in ("start", "channel"):
            self._is_harmony, self._header = True, ""
            return True
        name = _name_of(mark_kind, mark)
        if mark_kind.startswith("open"):
            return self._take_opening_mark(name)
        if mark_kind.startswith("close"):
            if self._quoted_openings.get(name, 0) > 0:
                self._quoted_openings[name] -= 1
                return False
            return name != "bare" and self._discard_as_reasoning()
        return self._is_harmony

    def _take_frame(self, mark: str) -> bool:
        """Act on a mark that may frame the answer. Returns whether it does: without reasoning
        before it, `<answer>` may be an element that the model was asked for."""
        if mark.startswith("<|"):
            return True
        if mark.startswith("</"):
            was_framed, self._is_framed = self._is_framed, False
            return was_framed
        self._is_framed = self.had_thoughts and not self._answer
        return self._is_framed

    def _take_mark_in_reasoning(self, mark_kind: str, mark: re.Match[str]) -> bool:
        if self._open_mark == "harmony":
            if mark_kind in ("start", "channel"):
                self._open_mark, self._header = None, ""
            elif mark_kind == "end":
                self._open_mark = None
        elif mark_kind.startswith("close") and _name_of(mark_kind, mark) == self._open_mark:
            self._open_mark, self._text_before = None, "\n"
        self.had_thoughts = True
        return True

    def _take_mark_in_header(self, mark_kind: str) -> bool:
        if mark_kind in ("start", "channel"):
            self._header = ""
            return True
        if mark_kind != "message":
            return False
        channel = (self._header or "").strip().lower()
        self._header, self._text_before = None, "\n"
        if channel.startswith(("analysis", "commentary", "thought")):
            self._open_mark = "harmony"
        elif channel.startswith("final"):
            self._discard_as_reasoning()
        return True

    def _take_opening_mark(self, name: str) -> bool:
        line = self._text_before.rpartition("\n")[2]
        opens_reasoning = self._is_at_beginning if name == "bare" else not line.strip()
        if opens_reasoning:
            self._open_mark = name
            return True
        self._quoted_openings[name] = self._quoted_openings.get(name, 0) + 1
        return False

    def _discard_as_reasoning(self) -> bool:
        """Discard the text so far, as it was reasoning. Returns True."""
        if self._answer:
            self._answer.clear()
            self.had_thoughts = self.started_in_reasoning = True
            self._restart()
        self._text_before = "\n"
        self._quoted_openings.clear()
        return True

    def _is_quoted(self, next_character: str) -> bool:
        """Return whether a mark is only mentioned: it stands between an opening and a closing
        quotation mark."""
        previous_character = self._text_before[-1:]
        if (
            previous_character not in _OPENING_QUOTES
            or not next_character
            or next_character not in _CLOSING_QUOTES
        ):
            return False
        return previous_character in "`(“‘«" or self._text_before[-2:-1] in ("", " ", "\n", "(")


def without_thoughts(text: str) -> str:
    """Return the answer in a complete text; empty if there is only reasoning."""
    reader = ThoughtFilter()
    reader.take(text)
    return reader.end()


def _name_of(mark_kind: str, mark: re.Match[str]) -> str:
    """Return the name that an opening mark and its closing mark have in common."""
    family = mark_kind.partition("_")[2]
    return family or mark[0].strip("</> ").split()[0].lower()


def _may_begin_bare(text: str) -> bool:
    text = text.lstrip()
    return bool(text) and "analysis".startswith(text)
