"""Formats of references for other programs: BibTeX, CSL-JSON, TEI."""
