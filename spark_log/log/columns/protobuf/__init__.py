"""Decodes Protobuf."""
