"""The tables of the metadata store: every small mutable fact of a cluster.

Times are in milliseconds, except quota_usage.used_until_us. Ranges of offsets are half-open: [base_offset, end_offset).
Each table and column has a comment with its meaning, which PostgreSQL stores too. A module defines the tables that one
folder of spark_log writes.

Lock order, in every transaction: lease, broker, log dir, schema registry, topic, producer or transaction, part, group,
share partition (sorted by group, topic and number), partition (sorted by topic and number), replica.
"""

from spark_log.metadata.tables.append_tables import producer, producer_batch, spark_batch, write_id
from spark_log.metadata.tables.cluster_tables import broker, lease, log_dir, store, topic
from spark_log.metadata.tables.controller_tables import reassignment
from spark_log.metadata.tables.definition import metadata
from spark_log.metadata.tables.gateway_tables import gateway
from spark_log.metadata.tables.groups_tables import (
    classic_group,
    classic_member,
    consumer_group,
    group_config,
    group_member,
    group_offset,
    group_partition,
    share_delayed,
    share_partition,
)
from spark_log.metadata.tables.metadata_tables import cluster, commit_token
from spark_log.metadata.tables.mirror_tables import mirror_position
from spark_log.metadata.tables.partitions_tables import (
    compaction,
    partition,
    replica,
    retired_copy,
    retired_file,
    retired_replica,
    truncation,
)
from spark_log.metadata.tables.publication_tables import (
    publication,
    publication_cursor,
    publication_intent,
    publication_intent_cursor,
)
from spark_log.metadata.tables.quotas_tables import client_quota, quota_usage
from spark_log.metadata.tables.registry_tables import schema, subject_config, subject_version
from spark_log.metadata.tables.security_tables import acl, scram_credential
from spark_log.metadata.tables.segments_tables import blob, segment
from spark_log.metadata.tables.transactions_tables import (
    transaction,
    transaction_offset,
    transaction_part,
    transaction_segment,
)

__all__ = [
    "OLDEST_REVISION",
    "SCHEMA_REVISION",
    "acl",
    "blob",
    "broker",
    "classic_group",
    "classic_member",
    "client_quota",
    "cluster",
    "commit_token",
    "compaction",
    "consumer_group",
    "gateway",
    "group_config",
    "group_member",
    "group_offset",
    "group_partition",
    "lease",
    "log_dir",
    "metadata",
    "mirror_position",
    "partition",
    "producer",
    "producer_batch",
    "publication",
    "publication_cursor",
    "publication_intent",
    "publication_intent_cursor",
    "quota_usage",
    "reassignment",
    "replica",
    "retired_copy",
    "retired_file",
    "retired_replica",
    "schema",
    "scram_credential",
    "segment",
    "share_delayed",
    "share_partition",
    "spark_batch",
    "store",
    "subject_config",
    "subject_version",
    "topic",
    "transaction",
    "transaction_offset",
    "transaction_part",
    "transaction_segment",
    "truncation",
    "write_id",
]

SCHEMA_REVISION = "v11"
"""The Alembic revision that this code reads and writes: the newest one in `migrations/versions`."""

OLDEST_REVISION = "v9"
"""The revision of the oldest code that may use a store of SCHEMA_REVISION: all migrations after it are additive."""
