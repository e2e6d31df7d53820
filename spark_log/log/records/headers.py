"""Names of the headers that spark-log gives a meaning."""

DELIVER_AT = "spark-log.deliver-at"
"""The time before which share groups do not deliver the record: decimal milliseconds since 1970."""
DEAD_LETTER_CAUSE = "spark-log.dlq.cause"
"""Why a dead letter was written: rejected, delivery-count or missing."""
