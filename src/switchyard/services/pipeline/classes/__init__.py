"""What a document is classified as: by keywords, and by meaning."""
