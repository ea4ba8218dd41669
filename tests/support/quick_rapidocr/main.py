"""As far as `services/text/ocr.py` asks of it."""


class RapidOCRError(Exception):
    """Nothing here raises it."""
