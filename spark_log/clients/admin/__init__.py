"""`from spark_log import Admin`: kafka-python's KafkaAdminClient for a spark-log cluster.

    client.py        the class: its settings, its methods, and the errors that it raises
    topics.py        topics, partitions, offsets, records: converts arguments and results of spark_log.cluster
    configs.py       topic configs
    partitions.py    elections, reassignments, log dirs, brokers
    groups.py        consumer groups and their offsets
    transactions.py  transactions, and the producers of partitions
    audit.py         records of changes in `__audit`; not a part of kafka-python

Results are the dicts and structs into which kafka-python converts a broker's answers.
"""
