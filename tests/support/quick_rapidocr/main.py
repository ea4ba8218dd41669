"""As far as `services/pipeline/text/ocr.py` asks of it."""


class RapidOCRError(Exception):
    """Nothing here raises it."""
