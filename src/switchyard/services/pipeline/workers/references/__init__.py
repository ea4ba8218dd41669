"""The job types on references: found, cut into fields, tied to where they are cited."""
