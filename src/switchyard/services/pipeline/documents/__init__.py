"""Services for senders of documents: uploads, status, results, references."""
