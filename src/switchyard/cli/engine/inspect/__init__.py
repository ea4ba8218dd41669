"""Commands that look: lanes, workers, doctor, documents, search."""
