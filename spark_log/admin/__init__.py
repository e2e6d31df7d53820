"""`from spark_log import Admin`: kafka-python's KafkaAdminClient for a spark-log cluster.

    client.py        the class: settings, one method for each of theirs, errors of both trees
    topics.py        topics, partitions, offsets, records: their arguments -> spark_log.cluster -> their results
    configs.py       topic configs
    partitions.py    elections, reassignments, log dirs, brokers
    groups.py        consumer groups and their offsets
    transactions.py  transactions, and the producers of partitions

Results are the dicts and structs that kafka-python makes of a broker's answers.
"""
