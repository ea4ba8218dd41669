"""Which label each token of a made-up reference has."""

from collections.abc import Sequence

from switchyard.services.pipeline.citations.tokens import Token, clean_reference, tokens_of


def labelled(text: str, labels: Sequence[str]) -> tuple[list[Token], list[str]]:
    """A text's tokens, and the label of each: that of its first letter.

    `clean_reference` drops and joins letters; as it never reorders them, their labels are found again one by one.
    """
    clean = clean_reference(text)
    aligned: list[str] = []
    place = 0
    for sign in clean:
        while (
            place < len(text) - 1
            and text[place] != sign
            and not (sign == " " and text[place].isspace())
        ):
            place += 1
        aligned.append(labels[min(place, len(labels) - 1)])
        place += 1
    tokens = tokens_of(clean)
    return tokens, ["id" if token.is_identifier else aligned[token.start] for token in tokens]
