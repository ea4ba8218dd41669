"""What all long operations have in common at the terminal: backfills, redrives, purges."""
