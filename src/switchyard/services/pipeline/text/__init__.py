"""Pure work on text: out of files, into sentences, words, chunks and sections."""
