"""Defines the settings of the Admin client, and lists the calls of kafka-python's client that are not supported."""

from dataclasses import dataclass

from spark_log.clients.client_settings import check_number, check_text

UNSUPPORTED = {
    **dict.fromkeys(
        ("api_versions", "describe_features", "update_features", "get_broker_version_data",
         "describe_metadata_quorum", "send_request", "send_requests"),
        "there is no broker protocol and no quorum",
    ),
    "describe_topic_partitions": "describe_topics returns every partition",
    "alter_replica_log_dirs": "a replica goes to its broker's log dir with the fewest; alter_partition_reassignments"
    " moves it to another broker and back",
}  # fmt: skip
"""Names of kafka-python's calls, each with the reason why it is not supported."""


@dataclass(frozen=True)
class AdminSettings:
    """Checked settings of an Admin client. KafkaConfigurationError names an invalid setting and its value."""

    client_id: str = "spark-log-admin"
    """Name of this program. It has no effect."""
    request_timeout_ms: int = 30_000
    """Maximum time that a call waits for the metadata store. With PostgreSQL it may wait 3 s longer for a lock."""
    metadata_max_age_ms: int = 300_000
    """Accepted without effect: nothing is cached, and every call reads the store."""

    def __post_init__(self) -> None:
        check_text("client_id", self.client_id)
        check_number("request_timeout_ms", self.request_timeout_ms, 1)
        check_number("metadata_max_age_ms", self.metadata_max_age_ms, 0)


def check_timeout(timeout_ms: object) -> None:
    if timeout_ms is not None:
        check_number("timeout_ms", timeout_ms, 0, whole=False)
