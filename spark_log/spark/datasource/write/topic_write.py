"""`write_topic` writes a batch to a topic, from any thread. Driver."""

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from spark_log.spark.datasource.write.active_session import activate_session

if TYPE_CHECKING:
    from spark_log.cluster.cluster import Cluster


def write_topic(
    frame: DataFrame,
    cluster: "str | Cluster",
    topic: str | None = None,
    *,
    txn: tuple[str, int] | None = None,
) -> None:
    """Append the rows to a topic, all or nothing, as `frame.write.format("spark_log")` does with an active session.

    Columns are value, and optionally key, headers, partition, timestamp, topic; without `topic`, each row names its
    own. `cluster` is an address or an open Cluster. `txn` is an application and a version (txnAppId, txnVersion): a
    version that is not above the application's last one changes nothing. Several threads may write at once. Raises the
    exceptions of a Spark write, with our message in them.
    """
    address = cluster if isinstance(cluster, str) else cluster.store.address.with_password
    options = {"cluster": address, "topic": topic}
    if txn is not None:
        application, version = txn
        options |= {"txnAppId": application, "txnVersion": str(version)}
    save(frame, {name: value for name, value in options.items() if value is not None})


def save(frame: DataFrame, options: dict[str, str]) -> None:
    """Append the rows with these options of `format("spark_log")`."""
    activate_session(frame.sparkSession)
    frame.write.format("spark_log").options(**options).mode("append").save()
