"""The HTTP face: routes over services, no logic of its own."""
