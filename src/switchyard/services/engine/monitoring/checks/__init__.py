"""Checks of the doctor, one subject per file; `services.engine.monitoring.doctor` has their
order."""
