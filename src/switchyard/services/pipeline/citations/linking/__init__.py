"""Find the work of each reference in catalogues of works."""
