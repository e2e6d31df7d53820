"""Contains the limits above which a check of the doctor is not ok. Limits that alerts have, too, are the same in
conf/prometheus/alerts.yaml.
"""

from spark_log.text import parse_bytes

TABLE_LAG_BOUNDS_MAX = 2
"""Multiple of the bound of a table's lag. Alert SparkLogTableStale."""
TABLE_STALE_MS_MIN = 300_000
"""Time in addition to that multiple. The alert waits as long (`for`): a table may be slow for a minute."""
GROUP_LAG_S_MAX = 600
"""Lag of a group. Alert SparkLogLagGrows."""
TRANSACTION_S_MAX = 1_800
"""Time for which a transaction may be open. Alert SparkLogHangingTransaction."""
UNFINISHED_S_MAX = 60
"""Time in which data stores append their parts of a committed transaction: a coordinator tries every 10 seconds."""

CLOCK_SKEW_MS_MAX = 1_000
LOG_DIR_CLOCK_SKEW_MS_MAX = 5_000

FREE_SHARE_LOW, FREE_SHARE_EMPTY = 0.10, 0.02
"""Shares of a disk: below the first a warning, below the second an error."""
DISK_LASTS_DAYS_MIN = 3
DELETED_BYTES_MAX = parse_bytes("1GiB")
"""Bytes of deleted files that processes keep open."""

LOCAL_WRITE_MS_MAX = 200
OBJECT_WRITE_MS_MAX = 2_000
"""Median time of a small forced write."""

CONNECTIONS_SHARE_MAX = 0.8
POSTGRES_TRANSACTION_S_MAX = 300
STORE_ANSWER_MS_MIN = 5_000
"""Time for which a statement of the store may wait for a lock: a server that waits is not one that hangs."""
WRAPAROUND_AGE_HIGH, WRAPAROUND_AGE_CRITICAL = 1_000_000_000, 1_600_000_000
"""Age of the oldest transaction id. PostgreSQL has vacuum_failsafe_age 1.6 billion, and stops at 2.1 billion."""
IDLE_SLOT_BYTES_MAX = parse_bytes("4GiB")
"""Bytes of write-ahead log that a replication slot without a standby holds back."""
SQLITE_LOG_BYTES_MAX = parse_bytes("128MiB")

RETIRED_OVERDUE_MS_MAX = 24 * 60 * 60 * 1000
"""Time for which a retired file may wait after its deletion was due."""
