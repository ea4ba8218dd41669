"""The error class that `services/pipeline/text/ocr.py` imports."""


class RapidOCRError(Exception):
    """The real package's error; this replacement never raises it."""
