"""The decoder of Avro."""
