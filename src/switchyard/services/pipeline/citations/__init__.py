"""References of papers, cut into fields by the model that comes along."""
