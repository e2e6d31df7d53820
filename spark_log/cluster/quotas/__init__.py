"""Keeps client quotas: how much clients of gateways may produce, consume and compute, under Kafka's names."""
