"""Commands of the document pipeline."""
