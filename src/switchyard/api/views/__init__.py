"""The JSON of the API and of `jobctl … --json`: records as the models of `api/models/`."""
