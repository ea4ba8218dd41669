"""Telling people who look at no screen: what the doctor finds, and how long operations end."""
