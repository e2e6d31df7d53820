"""Typed columns: schemas, their evolution, and decoders from the bytes of values to Arrow structs."""
