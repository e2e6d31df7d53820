"""The decoder of JSON."""
