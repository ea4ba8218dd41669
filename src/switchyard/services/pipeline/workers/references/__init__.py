"""The job types on references: find them, cut them into fields, and find where they are cited."""
