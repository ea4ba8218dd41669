"""References as other programs read them: BibTeX, CSL-JSON, TEI."""
