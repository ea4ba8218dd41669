"""A client of arXiv's API, within the limits that arXiv asks for."""
