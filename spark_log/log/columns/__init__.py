"""Defines typed columns: schemas, their evolution, and decoders from the bytes of keys and values to Arrow structs."""
