"""Serves Kafka's wire protocol, so that any Kafka client works on a spark-log cluster.

A gateway keeps no state of its own. Any number of processes serve one cluster, and clients see them as its brokers.
"""
