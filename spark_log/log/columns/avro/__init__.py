"""Decodes Avro."""
