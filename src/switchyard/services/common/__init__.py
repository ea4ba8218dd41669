"""What every wing stands on: settings, errors, logs, tracing, files."""
