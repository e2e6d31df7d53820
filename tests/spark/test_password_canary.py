"""A password in the address of the store is not in Spark's event log, plans, progress, errors or checkpoints."""

import logging
from contextlib import contextmanager

import pytest

from spark_log.cluster.cluster import Cluster
from tests.support.server_processes import free_port
from tests.support.topics import make

CANARY = "can4ry-of-the-store"


@contextmanager
def event_log(spark, folder):
    """Writes what Spark's history server would read to a file in the folder."""
    jvm, context = spark._jvm, spark.sparkContext._jsc.sc()
    conf = context.conf().clone().set("spark.eventLog.compress", "false").set("spark.eventLog.rolling.enabled", "false")
    no_attempt = getattr(getattr(jvm.scala, "None$"), "MODULE$")
    listener = jvm.org.apache.spark.scheduler.EventLoggingListener(
        "canary", no_attempt, jvm.java.net.URI(folder.as_uri()), conf, context.hadoopConfiguration()
    )
    listener.start()
    context.addSparkListener(listener)
    try:
        yield
    finally:
        context.listenerBus().waitUntilEmpty()
        context.removeSparkListener(listener)
        listener.stop()


@pytest.mark.slow
def test_spark_shows_no_password(spark, postgres_server, tmp_path, caplog, capfd):
    """The option `cluster` is once the address, and once a file that has it."""
    caplog.set_level(logging.DEBUG, "spark_log")  # not py4j's, which has all calls
    url = postgres_server.create_database().replace("@", f":{CANARY}@", 1)
    secret = tmp_path / "secret"
    secret.write_text(url)
    root = tmp_path / "searched"
    (root / "events").mkdir(parents=True)
    with Cluster.init(str(secret), log_dir=str(root / "log")) as cluster:
        for topic in ("by-option", "by-file"):
            make(cluster, topic, 1)
    texts = []
    with event_log(spark, root / "events"):
        for address, topic in ((url, "by-option"), (str(secret), "by-file")):
            options = {"cluster": address, "topic": topic}
            rows = spark.range(3).selectExpr("CAST(id AS string) AS value")
            rows.write.format("spark_log").options(**options).mode("append").save()
            read = spark.read.format("spark_log").options(cluster=address, subscribe=topic).load()
            assert read.count() == 3
            texts += [read._jdf.queryExecution().toString(), str(read)]
            stream = spark.readStream.format("spark_log").options(cluster=address, subscribe=topic)
            rows = stream.option("startingOffsets", "earliest").load().select("value")
            writing = rows.writeStream.format("spark_log").options(**options).trigger(availableNow=True)
            query = writing.option("checkpointLocation", str(root / topic)).start()
            query.awaitTermination()
            texts += [str(query.recentProgress), str(query.lastProgress), str(query.status)]
        wrong = f"postgresql://spark_log:{CANARY}@127.0.0.1:{free_port()}/nothing"
        with pytest.raises(
            Exception, match="nothing"
        ) as raised:  # of Spark, which has classes for each of its versions
            spark.read.format("spark_log").options(cluster=wrong, subscribe="by-option").load().count()
        texts.append(str(raised.value))
    events = list((root / "events").iterdir())
    assert len(events) == 1 and "SparkListenerSQLExecutionStart" in events[0].read_text()
    texts += [caplog.text, *capfd.readouterr()]
    texts += [path.read_bytes().decode(errors="replace") for path in root.rglob("*") if path.is_file()]
    assert [text[max(0, text.find(CANARY) - 300) :][:400] for text in texts if CANARY in text] == []
