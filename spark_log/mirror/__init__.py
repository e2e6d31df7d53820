"""Copies of topics from one cluster in another one. Records keep their offsets."""

from spark_log.mirror.local_mirror import mirror_topics as mirror_topics
