"""The knowledge graph: works and documents, who wrote them, and what cites what."""
