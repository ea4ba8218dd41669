"""The scheduler and its periodic duties."""
