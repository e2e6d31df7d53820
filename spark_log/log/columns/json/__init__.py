"""Decodes JSON."""
