"""Tell people by webhook what the doctor finds, and how jobs and long operations end."""
