"""Documents: reading them, by text and by OCR, and finding them again."""
