"""How HTTP is spoken: problems, OpenAPI, event streams."""
