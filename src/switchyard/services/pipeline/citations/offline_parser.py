"""The offline parser: a linear-chain CRF, learned from made-up references."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

from switchyard.services.common.extras import naming_extra
from switchyard.services.pipeline.citations.reference import Reference
from switchyard.services.pipeline.citations.reference_assembly import assemble_reference
from switchyard.services.pipeline.citations.token_features import features_of
from switchyard.services.pipeline.citations.tokens import clean_reference, tokens_of

if TYPE_CHECKING:
    import pycrfsuite

MODEL = "references.crfsuite"


class OfflineParser:
    """Parses references into fields with the package's model, offline; over 1,000/s on one core.

    One parser is used by one thread at a time.
    """

    engine = "offline"

    def __init__(self, model: Path | None = None) -> None:
        """Use the package's model, or the file `model`, which `make train-citations` has
        written."""
        self._model = model

    @cached_property
    def _tagger(self) -> pycrfsuite.Tagger:
        with naming_extra():
            import pycrfsuite

        tagger = pycrfsuite.Tagger()
        if self._model is not None:
            tagger.open(str(self._model))
            return tagger
        with as_file(files("switchyard.services.pipeline.citations").joinpath(MODEL)) as path:
            # It maps the file, which stays readable when a temporary copy of it is removed.
            tagger.open(str(path))
        return tagger

    def parse(self, text: str) -> Reference:
        """Parse one reference into its fields; only its first 5,000 characters are read."""
        text = clean_reference(text)
        tokens = tokens_of(text)
        if not tokens:
            return Reference(text=text, engine=self.engine)
        tagger = self._tagger
        tagger.set(features_of(tokens))
        labels = tagger.tag()
        # The probability of all labels together falls with their number, so take the mean.
        confidence = tagger.probability(labels) ** (1 / len(labels))
        return assemble_reference(text, tokens, labels, confidence=confidence, engine=self.engine)

    def parse_all(self, texts: Iterable[str]) -> list[Reference]:
        """Parse each reference, in order."""
        return [self.parse(text) for text in texts]
