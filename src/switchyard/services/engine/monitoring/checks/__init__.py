"""What the doctor asks, one subject a file; `services.engine.monitoring.doctor` has them in
order."""
