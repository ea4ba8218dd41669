"""Services for those who send documents: uploads, status, results, references."""
