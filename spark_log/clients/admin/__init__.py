"""`from spark_log import Admin` imports the counterpart of kafka-python's KafkaAdminClient for a spark-log cluster.

    client.py          the class, which inherits its methods from the modules below
    access_calls.py    its methods for users and ACLs
    admin_settings.py  its settings, and the calls of kafka-python that are not supported
    topics.py          topics, partitions, offsets, records
    configs.py         configs of topics, of groups and of the cluster
    partitions.py      elections, reassignments, log dirs, brokers
    groups.py          consumer groups and their offsets
    share_groups.py    its methods for share groups
    transactions.py    transactions, and the producers of partitions
    users.py, acls.py  users with their credentials, and ACLs
    outcomes.py        errors by topic, group or resource, as in a broker's answers
    quotas.py          client quotas; not a part of the class
    audit.py           records of changes in `__audit`; not a part of kafka-python

Results are the dicts and structs into which kafka-python converts a broker's answers.
"""
