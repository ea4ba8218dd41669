"""The document pipeline: what needs neither files nor servers."""
