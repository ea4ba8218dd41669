"""`make train-citations`: makes the model, and measures it on styles, journals, publishers and places that it has never seen."""

import argparse
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pycrfsuite

from benchmarks.citations.evaluation import evaluated, printed
from benchmarks.citations.faults import with_faults
from benchmarks.citations.labelling import labelled
from benchmarks.citations.works import Works
from benchmarks.citations.writing import Writer, styles
from switchyard.services.pipeline.citations import offline_parser
from switchyard.services.pipeline.citations.offline_parser import MODEL, OfflineParser
from switchyard.services.pipeline.citations.token_features import features_of

SEED = 20260101
_TWO_WORKS = 0.015
"""Part of the entries that name a second work."""


def examples(count: int, seed: int) -> Iterator[tuple[list[list[str]], list[str]]]:
    """Features and labels of made-up references, in the styles to learn from."""
    rng = random.Random(seed)
    works, writer = Works(seed), Writer(rng, vary=True)
    learned, _ = styles()
    for number in range(count):
        style = learned[number % len(learned)]
        pieces = writer.write(works.next(), style)
        if rng.random() < _TWO_WORKS:  # the first is the entry's reference
            second = writer.write(works.next(), style)
            pieces += [(rng.choice(["; ", ". ", "; see also "]), "o")]
            pieces += [(text, "note") for text, _ in second]
        text, labels = with_faults(pieces, rng)
        tokens, of_tokens = labelled(text, labels)
        yield features_of(tokens), of_tokens


def train(path: Path, *, count: int, iterations: int, seed: int = SEED) -> None:
    """Writes a model to `path`, learned from `count` references."""
    trainer = pycrfsuite.Trainer(verbose=False)
    trainer.select("lbfgs")
    trainer.set_params(
        {
            "c1": 0.3,
            "c2": 0.05,
            "max_iterations": iterations,
            "feature.minfreq": 3,
            "feature.possible_transitions": True,
        }
    )
    for features, labels in examples(count, seed):
        if features:
            trainer.append(features, labels)
    trainer.train(str(path))


def main() -> None:
    """Trains, measures, prints."""
    arguments = argparse.ArgumentParser(prog="make train-citations", description=__doc__)
    arguments.add_argument(
        "--out", type=Path, default=Path(offline_parser.__file__).with_name(MODEL)
    )
    arguments.add_argument("--count", type=int, default=8_000, help="references to learn from")
    arguments.add_argument("--iterations", type=int, default=70)
    arguments.add_argument(
        "--measure-only", action="store_true", help="measure the model that is there"
    )
    given = arguments.parse_args()
    if not given.measure_only:
        began = time.monotonic()
        train(given.out, count=given.count, iterations=given.iterations)
        print(
            f"{given.out.name}: {given.out.stat().st_size / 1e6:.1f} MB, learned from {given.count:,} references in {time.monotonic() - began:.0f} s\n"
        )
    print(printed(evaluated(OfflineParser(given.out))))


if __name__ == "__main__":
    main()
