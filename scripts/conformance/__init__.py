"""Test suites of Kafka clients, and Kafka's own tools, on a gateway: `make conformance`.

Each suite is fetched once from its registry into a folder outside the repository, and runs on a gateway of a new
cluster, over loopback. Where a real broker decides what is right, the suite runs on one too.
"""
