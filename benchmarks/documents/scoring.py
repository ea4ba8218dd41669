"""What was read, held against the truth about a generated document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from switchyard.services.pipeline.samples.canvas import Block
from switchyard.services.pipeline.text.plain_text import words


@dataclass
class Score:
    """Sums over documents; every figure is a percentage."""

    right: int = 0
    """Words of the truth that were read."""
    true: int = 0
    read: int = 0
    """Words that were read, right or wrong."""
    neighbours_right: int = 0
    """Pairs of words that follow one another in the truth, and in what was read."""
    neighbours: int = 0
    rows_right: int = 0
    """Rows of tables whose cells are one row of Markdown."""
    rows: int = 0
    pages: int = 0
    by_kind: dict[str, Score] = field(default_factory=dict)

    def add(self, kind: str, blocks: Sequence[Block], text: str, pages: int) -> None:
        """Another document."""
        for score in (self, self.by_kind.setdefault(kind, Score())):
            score._add(blocks, text, pages)

    def _add(self, blocks: Sequence[Block], text: str, pages: int) -> None:
        true = [word for block in blocks for word in words(block.text)]
        read = words(text)
        self.right += (Counter(true) & Counter(read)).total()
        self.true += len(true)
        self.read += len(read)
        pairs, found = Counter(pairwise(true)), Counter(pairwise(read))
        self.neighbours_right += (pairs & found).total()
        self.neighbours += pairs.total()
        there = {tuple(_cells(line)) for line in text.splitlines() if line.startswith("|")}
        for block in blocks:
            self.rows += len(block.rows)
            self.rows_right += sum(tuple(map(_plain, row)) in there for row in block.rows)
        self.pages += pages

    @property
    def found(self) -> float:
        return 100 * self.right / max(self.true, 1)

    @property
    def precise(self) -> float:
        return 100 * self.right / max(self.read, 1)

    @property
    def order(self) -> float:
        return 100 * self.neighbours_right / max(self.neighbours, 1)

    @property
    def tables(self) -> float:
        return 100 * self.rows_right / max(self.rows, 1)


def accuracy(blocks: Sequence[Block], text: str) -> float:
    """Words of the blocks that are in the text, as often as there, in per cent."""
    score = Score()
    score.add("", blocks, text, 1)
    return score.found


def _cells(line: str) -> list[str]:
    return [_plain(cell) for cell in line.strip().strip("|").split("|")]


def _plain(cell: str) -> str:
    return " ".join(words(cell))
