"""The knowledge graph: works and documents, their authors, and citations between them."""
