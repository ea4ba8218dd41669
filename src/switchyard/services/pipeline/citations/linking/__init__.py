"""Each reference's work, as catalogues of works know it."""
