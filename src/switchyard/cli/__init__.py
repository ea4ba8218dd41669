"""The command line, jobctl: commands over services, no logic of their own."""
