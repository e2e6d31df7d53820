"""The decoder of Protobuf."""
