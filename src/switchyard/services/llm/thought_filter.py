"""Separating an answer from the reasoning that a model writes around it.

Servers that know their model send its reasoning in a field of its own. Others send it as text,
between marks that each family of models has of its own, and often without the opening one, which
was part of the prompt. The text is hostile: each character is looked at a bounded number of times,
and no more than `_MAX_HELD` characters wait for the rest of a mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_NAMES = (
    "think|thinking|thought|thoughts|thought_process|reasoning|reasoning_content|reflection|"
    "analysis|scratchpad"
)
_END_OF_BARE = "assistantfinal"
_MAX_HELD = 128
"""Characters that may be the beginning of a mark."""
_MAX_HEADER = 200
"""Characters between the marks of a message's head in OpenAI's harmony format."""
_MARK = re.compile(
    rf"""
    <(?:[a-z]{{1,8}}:)?(?P<open>{_NAMES})(?:\s[^<>]{{0,80}})?>
    | </(?:[a-z]{{1,8}}:)?(?P<close>{_NAMES})\s{{0,8}}>
    | (?P<open_mistral>\[THINK\]) | (?P<close_mistral>\[/THINK\])
    | (?P<open_kimi>◁think▷) | (?P<close_kimi>◁/think▷)
    | (?P<open_cohere><\|START_THINKING\|>) | (?P<close_cohere><\|END_THINKING\|>)
    | (?P<open_thought><\|begin_of_thought\|>) | (?P<close_thought><\|end_of_thought\|>)
    | (?P<open_inner><\|inner_prefix\|>) | (?P<close_inner><\|inner_suffix\|>)
    | (?P<open_gemma><\|channel>thought) | (?P<close_gemma><channel\|>)
    | (?P<open_unused><unused94>) | (?P<close_unused><unused95>)
    | (?P<open_bare>(?-i:analysis(?=[A-Z"“]))) | (?P<close_bare>(?-i:{_END_OF_BARE}))
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
_MAY_BEGIN = re.compile(
    r"(?:<[^<>\n]{0,100}|<\|channel>[a-z]{0,6}|\[/?[a-z]{0,5}|◁/?[a-z]{0,5}|`{1,2})\Z",
    re.IGNORECASE,
)
_QUOTES = "`'\"“‘«("
_MENTION_AFTER = "`'\"”’»)"


class ThoughtFilter:
    """Takes the text of one answer in pieces, and passes on the answer without reasoning."""

    def __init__(
        self,
        tell: Callable[[str], None] = lambda text: None,
        restart: Callable[[], None] = lambda: None,
    ) -> None:
        """`tell` gets each piece of the answer as soon as it is known to be one; `restart` is
        called when what it got turns out to be reasoning, without a mark at its beginning."""
        self._tell = tell
        self._restart = restart
        self._answer: list[str] = []
        self._held = ""
        self._before = "\n"
        """The last characters that were passed on, or dropped as a mark."""
        self._within: str | None = None
        """The mark that has opened the reasoning which is being read."""
        self._header: str | None = None
        """What has been read of the head of a message, in harmony."""
        self._is_harmony = False
        self._is_fenced = False
        self._is_data = False
        """The answer is JSON or code: marks in it are part of it."""
        self._is_framed = False
        self._mentioned: dict[str, int] = {}
        self.had_thoughts = False
        self.began_within = False
        """The reasoning had no opening mark."""

    def take(self, text: str) -> None:
        """Read the next piece of the text."""
        self._read(self._held + text, is_last=False)

    def end(self) -> str:
        """Return the answer; empty where there was nothing but reasoning."""
        self._read(self._held, is_last=True)
        if self._header is not None:  # no head of a message, but text that looks like one
            self._give_back_header()
        return "".join(self._answer).strip()

    def _read(self, text: str, *, is_last: bool) -> None:
        at = 0
        self._held = ""
        for mark in _MARK.finditer(text):
            if not is_last and mark.end() == len(text) and mark.lastgroup != "fence":
                self._pass(text[at : mark.start()])
                self._held = text[mark.start() :]  # whether it is quoted, the next character tells
                return
            self._pass(text[at : mark.start()])
            after = text[mark.end() : mark.end() + 1]
            if not self._follow_mark(mark, after):
                self._pass(mark[0])
            at = mark.end()
        rest = text[at:]
        if self._within == "bare" and not is_last:
            self._held = rest[-len(_END_OF_BARE) :]
            return
        held = None if is_last else _MAY_BEGIN.search(rest, max(0, len(rest) - _MAX_HELD))
        if held is None and not is_last and self._is_blank and _begins_bare(rest):
            self._held = rest
            return
        self._pass(rest if held is None else rest[: held.start()])
        self._held = "" if held is None else held[0]

    @property
    def _is_blank(self) -> bool:
        """Nothing of the answer has come."""
        return not self._answer and self._within is None and self._header is None

    def _pass(self, text: str) -> None:
        if not text:
            return
        if self._header is not None:
            self._header += text
            if len(self._header) > _MAX_HEADER:
                self._give_back_header()
            return
        if self._within is not None:
            self.had_thoughts = self.had_thoughts or bool(text.strip())
            return
        if not self._answer:
            text = text.lstrip()
            if not text:
                return
            self._is_data = text[0] in "{["
        self._before = (self._before + text)[-80:]
        self._answer.append(text)
        self._tell(text)

    def _give_back_header(self) -> None:
        header, self._header = self._header or "", None
        self._pass(header)

    def _follow_mark(self, mark: re.Match[str], after: str) -> bool:
        """Follow a mark. Returns whether it was one."""
        kind = mark.lastgroup or ""
        if kind == "fence":
            if self._within is None and self._header is None:
                self._is_fenced = not self._is_fenced
            return False
        if self._within is not None:
            return self._follow_mark_within(kind, mark)
        if self._header is not None:
            return self._follow_mark_in_header(kind)
        if self._is_fenced or self._is_quoted(after):
            return False
        if kind == "frame":
            return self._is_frame(mark[0])
        if self._is_harmony and kind == "end":
            return True
        if self._is_data and not self._is_harmony:
            return False
        if kind in ("start", "channel"):
            self._is_harmony, self._header = True, ""
            return True
        name = _name_of(kind, mark)
        if kind.startswith("open"):
            return self._open(name)
        if kind.startswith("close"):
            if self._mentioned.get(name, 0) > 0:
                self._mentioned[name] -= 1
                return False
            return name != "bare" and self._began_within()
        return self._is_harmony

    def _is_frame(self, mark: str) -> bool:
        """Return whether a mark is a frame of the answer; without reasoning before it, `<answer>`
        may be an element that the model was asked for."""
        if mark.startswith("<|"):
            return True
        if mark.startswith("</"):
            was_framed, self._is_framed = self._is_framed, False
            return was_framed
        self._is_framed = self.had_thoughts and not self._answer
        return self._is_framed

    def _follow_mark_within(self, kind: str, mark: re.Match[str]) -> bool:
        if self._within == "harmony":
            if kind in ("start", "channel"):
                self._within, self._header = None, ""
            elif kind == "end":
                self._within = None
        elif kind.startswith("close") and _name_of(kind, mark) == self._within:
            self._within, self._before = None, "\n"
        self.had_thoughts = True
        return True

    def _follow_mark_in_header(self, kind: str) -> bool:
        if kind in ("start", "channel"):
            self._header = ""
            return True
        if kind != "message":
            return False
        channel = (self._header or "").strip().lower()
        self._header, self._before = None, "\n"
        if channel.startswith(("analysis", "commentary", "thought")):
            self._within = "harmony"
        elif channel.startswith("final"):
            self._began_within()
        return True

    def _open(self, name: str) -> bool:
        is_first = self._is_blank
        line = self._before.rpartition("\n")[2]
        if is_first if name == "bare" else not line.strip():
            self._within = name
            return True
        self._mentioned[name] = self._mentioned.get(name, 0) + 1
        return False

    def _began_within(self) -> bool:
        """Treat the text so far as reasoning."""
        if self._answer:
            self._answer.clear()
            self.had_thoughts = self.began_within = True
            self._restart()
        self._before = "\n"
        self._mentioned.clear()
        return True

    def _is_quoted(self, after: str) -> bool:
        """Return whether a mark is only mentioned: between quotes of which the first opens."""
        before = self._before[-1:]
        if before not in _QUOTES or not after or after not in _MENTION_AFTER:
            return False
        return before in "`(“‘«" or self._before[-2:-1] in ("", " ", "\n", "(")


def without_thoughts(text: str) -> str:
    """Return the answer in a whole text; empty where there is nothing but reasoning."""
    reader = ThoughtFilter()
    reader.take(text)
    return reader.end()


def _name_of(kind: str, mark: re.Match[str]) -> str:
    """Return the name that an opening mark and its closing one have in common."""
    family = kind.partition("_")[2]
    return family or mark[0].strip("</> ").split()[0].lower()


def _begins_bare(text: str) -> bool:
    text = text.lstrip()
    return bool(text) and "analysis".startswith(text)
