"""Commands about jobs: publish, list, show, cancel."""
