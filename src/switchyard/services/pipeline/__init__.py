"""The document pipeline, an application of the engine: text, sources, search, citations, graph."""
