"""Compare and add up vectors in columns of Arrow, as LanceDB returns them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def cosines(vector: Sequence[float], column: Any) -> list[float]:
    """Return the cosine of each vector of a column and `vector`; 0 where either is all zeros."""
    import numpy as np

    query_vector = np.array(vector)
    compared = column.combine_chunks().flatten().to_numpy().reshape(-1, len(query_vector))
    lengths = np.linalg.norm(compared, axis=1) * np.linalg.norm(query_vector)
    similarities: list[float] = (compared @ query_vector / np.where(lengths, lengths, 1.0)).tolist()
    return similarities


def add_up(sums: dict[str, Any], batch: Any, dimensions: int) -> None:
    """Add the vectors of a batch to the sums of their documents."""
    import numpy as np

    vectors = batch.column("vector").flatten().to_numpy().reshape(-1, dimensions)
    document_column = batch.column("document_id").dictionary_encode()
    document_numbers = document_column.indices.to_numpy()
    for number, document_id in enumerate(document_column.dictionary.to_pylist()):
        batch_sum = vectors[document_numbers == number].sum(axis=0, dtype=np.float64)
        sums[document_id] = sums[document_id] + batch_sum if document_id in sums else batch_sum
