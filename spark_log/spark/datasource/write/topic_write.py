"""`write_topic` writes a batch to a topic, from any thread. Driver."""

from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

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

    Columns are value, and optionally key, headers, partition, timestamp, topic; without the argument `topic`, each row
    names its topic. `cluster` is an address or an open Cluster. `txn` is an application and a version (txnAppId,
    txnVersion): a version that is not above the application's last one changes nothing. Several threads may write at
    once. Raises the exceptions of a Spark write, which contain spark-log's message.
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


def activate_session(spark: SparkSession) -> None:
    """Make `spark` the active session of the calling thread, unless the thread has one.

    `write.format("spark_log")` and `writeStream.format("spark_log")` need an active session: Spark searches for a
    Python data source in the active session of the thread, and raises DATA_SOURCE_NOT_FOUND without one. Only the
    thread that created the session and the threads of foreachBatch have one. Other threads call this before they write:

        ThreadPoolExecutor(8, initializer=activate_session, initargs=(spark,))

    Does nothing for a session of Spark Connect, whose server activates it.
    """
    if isinstance(spark, SparkSession) and SparkSession.getActiveSession() is None:
        jvm: Any = spark._jvm
        jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)
