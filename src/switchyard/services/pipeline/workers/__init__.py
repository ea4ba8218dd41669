"""All job types, a module or folder for each kind of worker."""
