"""Commands about dead letters: list, groups, edit, export, redrive, purge."""
