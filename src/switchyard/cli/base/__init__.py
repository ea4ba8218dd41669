"""The parts that all commands share: options, output, errors, waiting."""
