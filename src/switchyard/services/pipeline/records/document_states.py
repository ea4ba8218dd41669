"""Where a document's pipeline ends; while it goes on, its state is that of a stage."""

COMPLETED = "completed"
NEEDS_OCR = "needs_ocr"
"""It is made of images, and waits for a worker that reads them."""
FAILED = "failed"
FINISHED_STATES = frozenset({COMPLETED})
"""States of a document that its pipeline leaves alone."""
