"""Kafka's wire protocol: any Kafka client works on a spark-log cluster.

A gateway keeps no state of its own. Any number of processes serve one cluster; to clients they are its brokers.
"""
