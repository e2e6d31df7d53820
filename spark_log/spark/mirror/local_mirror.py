"""Mirrors topics of moderate size in this process, without Spark. (`jobs/mirror.py` copies in Spark tasks.)"""

from collections.abc import Sequence

from spark_log.cluster.cluster import Cluster
from spark_log.log.append.transfer import Transfer, Transferred, transfer
from spark_log.spark.datasource.options.topic_choice import SubscribeTopics
from spark_log.spark.mirror.mirror import Mirror
from spark_log.spark.mirror.mirror_topics import MirrorSettings


def mirror_topics(source: Cluster, target: Cluster, *topics: str, prefix: str = "") -> int:
    """Copy the records that the target lacks now, with their offsets in the source. Return the number of copied
    records.

    The topics' names in the target begin with `prefix`. Topics and partitions that the target lacks are created with
    the configs of the source. After an interruption, call it again: it continues where the target ends, and copies no
    record twice. Raises UnknownTopicOrPartitionError, InvalidOptionError if both clusters are the same, and
    DataLossError and OffsetOutOfRangeError if the target has other records than the source (`Mirror.ranges`).
    """
    mirror = Mirror(source, target, MirrorSettings(SubscribeTopics(topics), prefix, create=True))
    copied = 0
    try:
        until = {partition: lacking.end for partition, lacking in mirror.ranges().items()}
        while (step := mirror.step(_in_this_process, until)) is not None:
            copied += step.records
    finally:
        mirror.close()
    return copied


def _in_this_process(transfers: Sequence[Transfer]) -> list[Transferred]:
    return [transfer(each) for each in transfers]
