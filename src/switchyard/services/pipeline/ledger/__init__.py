"""Tables and queries of documents, crawls, the graph and catalogue answers."""
