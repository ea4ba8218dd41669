"""Sample documents: articles for the demo, and any number of made-up PDFs of many kinds."""
