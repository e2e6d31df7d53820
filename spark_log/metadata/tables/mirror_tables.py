"""Table of the positions of mirrors."""

from sqlalchemy import BigInteger, String

from spark_log.metadata.tables.definition import column, partition_number, tables_of, topic_id

_table = tables_of("spark/mirror")

mirror_position = _table(
    "mirror_position",
    topic_id(primary_key=True),
    partition_number(primary_key=True),
    column("source_cluster_id", String(36), "cluster.cluster_id of the cluster that is mirrored"),
    column("source_topic_uuid", String(32), "topic.uuid there"),
    column("leader_epoch", BigInteger, "of the partition there when the records were planned"),
    column("end_offset", BigInteger, "log end offset here after the last step"),
    column("target_leader_epoch", BigInteger, "of the partition here before that step"),
    deleted_with=("topic",),
    comment="Progress of mirrors into this cluster: per partition, the source topic and the target's end offset.",
)
