"""What the doctor asks, one subject a file; `services.monitoring.doctor` has them in order."""
