"""The dashboard: pages for a person who looks after the system. Start with `views.py`."""
