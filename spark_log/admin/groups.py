"""Consumer groups, in kafka-python's arguments and results."""
