"""The tables of the metadata store: every small mutable fact of a cluster.

Times are in milliseconds, except quota_usage.used_until_us. Ranges of offsets are half-open: [base_offset, end_offset).
Each table and column has a comment with its meaning, which PostgreSQL stores too. A module defines the tables that one
folder of spark_log writes.

Lock order, in every transaction: lease, broker, log dir, schema registry, topic, producer or transaction, part, group,
share partition (sorted by group, topic and number), partition (sorted by topic and number), replica.
"""

from spark_log.metadata.tables.append_tables import *
from spark_log.metadata.tables.cluster_tables import *
from spark_log.metadata.tables.controller_tables import *
from spark_log.metadata.tables.definition import *
from spark_log.metadata.tables.gateway_tables import *
from spark_log.metadata.tables.groups_tables import *
from spark_log.metadata.tables.metadata_tables import *
from spark_log.metadata.tables.mirror_tables import *
from spark_log.metadata.tables.partitions_tables import *
from spark_log.metadata.tables.publication_tables import *
from spark_log.metadata.tables.quotas_tables import *
from spark_log.metadata.tables.registry_tables import *
from spark_log.metadata.tables.security_tables import *
from spark_log.metadata.tables.segments_tables import *
from spark_log.metadata.tables.transactions_tables import *

SCHEMA_REVISION = "v11"
"""The Alembic revision that this code reads and writes: the newest one in `migrations/versions`."""

OLDEST_REVISION = "v9"
"""The revision of the oldest code that may use a store of SCHEMA_REVISION: all migrations after it are additive."""
