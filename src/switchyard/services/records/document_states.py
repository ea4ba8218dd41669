"""Where a document's pipeline ends; while it goes on, its state is that of a stage."""

COMPLETED = "completed"
NEEDS_OCR = "needs_ocr"
FAILED = "failed"
FINISHED_STATES = frozenset({COMPLETED, NEEDS_OCR})
"""States of a document that its pipeline leaves alone."""
