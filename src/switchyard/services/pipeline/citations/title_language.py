"""Guess the language of a title by its small words."""

_SMALL_WORDS = {
    language: frozenset(words.split())
    for language, words in {
        "en": "the of and in on for to with by from at as is are an towards using between how",
        "de": "der die das und des dem den ein eine zur zum von im am auf für mit bei aus über",
        "fr": "la le les l d du des et une un pour par sur dans entre aux au en de",
        "es": "el la los las del y una un para con por sobre entre en de",
        "it": "il lo la gli i dei delle della del nella nel e per tra una un di in",
        "pt": "o a os as do da dos das no na e uma um para com por em de",
    }.items()
}


def language_of(text: str) -> str:
    """Return the ISO 639-1 code of a title's language, one of six; empty where its small words
    don't tell."""
    words = text.lower().replace("'", " ").replace("’", " ").split()
    counts = {
        language: sum(word in small_words for word in words)
        for language, small_words in _SMALL_WORDS.items()
    }
    best, second = sorted(counts.values(), reverse=True)[:2]
    if best == second:
        return ""
    return next(language for language, count in counts.items() if count == best)
