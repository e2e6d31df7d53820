"""SparkLogListener: what it reports of a real query, and that it never ends one."""

import urllib.request
from uuid import uuid4

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.listener import QueryStartedEvent

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from spark_log.errors import MetadataStoreUnavailableError
from spark_log.facts.metrics.history import Kind, read_queries, read_series
from spark_log.facts.metrics.query_facts import QueryFacts
from spark_log.ids import TopicPartition
from spark_log.log.log import Records
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark.streams import SparkLogListener, observing_queries, query_listener
from tests.spark.queries import running
from tests.support.operations import firing, samples
from tests.support.postgres import PostgresServer
from tests.support.records import table
from tests.support.waiting import LIMIT_S, wait_until


def counts(spark, cluster, folder, **options):
    """A running query with state: the number of records of each value of topic t."""
    source = spark.readStream.format("spark_log").options(cluster=str(cluster.store.address), subscribe="t", **options)
    counted = source.option("startingOffsets", "earliest").load().groupBy("value").count()
    writer = counted.writeStream.queryName("counts").outputMode("update").format("noop")
    return writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(processingTime="0 seconds").start()


def scraped(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return samples(answer.read().decode())


def of_queries(port):
    return {name: value for (name, _), value in scraped(port).items()}


def test_it_reports_what_spark_reports_and_the_lag(spark, cluster, log, tmp_path):
    topic = create_topic(cluster, "t", 2)
    log.append(topic, [Records(0, table("a", "a", "b")), Records(1, table("c"))])
    with observing_queries(spark, cluster, metrics_port=0, record_interval_s=0.05) as listener:
        with running(counts(spark, cluster, tmp_path)) as query:
            query.processAllAvailable()
            log.append(topic, [Records(0, table("a", "d"))])
            query.processAllAvailable()
            (facts,) = wait_until(lambda: [q for q in listener.queries() if q.total_rows == 6 and q.state_rows])
            progress = [each for each in query.recentProgress if each.batchId == facts.batch_id][-1]
            assert (facts.query_id, facts.run_id, facts.name) == (str(query.id), str(query.runId), "counts")
            assert (facts.rows, facts.state_rows) == (progress.numInputRows, progress.stateOperators[0].numRowsTotal)
            rounded = pytest.approx(progress.processedRowsPerSecond, abs=0.1)  # in Spark's JSON
            assert facts.processed_rate == rounded
            assert facts.state_bytes == progress.stateOperators[0].memoryUsedBytes > 0
            assert facts.batch_s == progress.batchDuration / 1000
            wait_until(lambda: listener.queries()[0].lag == 0)
            found = of_queries(listener.port)
            assert found["spark_log_query_lag_records"] == 0 and found["spark_log_query_active"] == 1
            assert found["spark_log_query_input_rows_total"] == 6 and found["spark_log_query_state_rows"] == 4
            wait_until(lambda: [q for q in read_queries(cluster, from_ms=0) if q.lag == 0 and q.state == "running"])
        log.append(topic, [Records(1, table("e"))])
        wait_until(lambda: listener.queries()[0].state == "terminated" and listener.queries()[0].lag == 1)
        assert listener.queries()[0].lags == {TopicPartition("t", 0): 0, TopicPartition("t", 1): 1}
        by_partition = [lag for (name, _), lag in scraped(listener.port).items() if "partition_lag" in name]
        assert sorted(by_partition) == [0, 1]
        assert of_queries(listener.port)["spark_log_query_active"] == 0
    (report,) = read_queries(cluster, from_ms=0)
    assert (report.query_name, report.query_id, report.state) == ("counts", str(query.id), "terminated")
    assert report.error is None and report.state_rows == 4
    history = spark.read.format("spark_log").options(cluster=str(cluster.store.address), subscribe="__metrics")
    rows = history.option("columns", "offset,record.query_name,record.state").load().orderBy("offset").collect()
    assert (rows[-1].record.query_name, rows[-1].record.state) == ("counts", "terminated")
    lag = read_series(cluster, Kind.QUERY, str(query.id), from_ms=0, to_ms=10**14, step_ms=10**14).values["lag"]
    assert lag[0] is not None


_NO_COORDINATOR = "SparkLogNoController"
"""It fires where no coordinator is scraped."""


def failing(spark, cluster, log):
    log.append(create_topic(cluster, "t"), [Records(0, table("a"))])
    records = spark.readStream.format("spark_log").options(cluster=str(cluster.store.address), subscribe="t")
    frame = records.option("startingOffsets", "earliest").load().selectExpr("raise_error('on purpose')")
    return frame.writeStream.format("noop")


def test_a_failed_query_is_reported_with_its_error(spark, cluster, log, tmp_path):
    writer = failing(spark, cluster, log).option("checkpointLocation", str(tmp_path / "checkpoint"))
    with observing_queries(spark, cluster, metrics_port=0) as listener:
        with pytest.raises(StreamingQueryException, match="on purpose"):
            writer.start().awaitTermination()
        wait_until(lambda: listener.queries()[0].state == "failed")
        found = scraped(listener.port)
        assert firing(found, found, 1) == {"SparkLogQueryFailed", _NO_COORDINATOR}
    (report,) = read_queries(cluster, from_ms=0)
    assert report.state == "failed" and "on purpose" in report.error


def test_an_error_that_leaves_the_block_is_reported_too(spark, cluster, log, tmp_path):
    writer = failing(spark, cluster, log).option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(StreamingQueryException), observing_queries(spark, cluster):
        writer.start().awaitTermination()
    assert read_queries(cluster, from_ms=0)[0].state == "failed"


def test_a_query_that_does_not_read_its_records_is_stalled(spark, cluster, log, tmp_path):
    topic = create_topic(cluster, "t")
    log.append(topic, [Records(0, table("a"))])
    with observing_queries(spark, cluster, metrics_port=0) as listener:
        source = spark.readStream.format("spark_log").options(cluster=str(cluster.store.address), subscribe="t")
        records = source.option("startingOffsets", "earliest").load()
        writer = records.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        with running(writer.trigger(processingTime="1 hour").start()):
            wait_until(lambda: of_queries(listener.port).get("spark_log_query_lag_records") == 0)
            found = scraped(listener.port)
            assert firing(found, found, 1) == {_NO_COORDINATOR}
            log.append(topic, [Records(0, table("b"))])
            wait_until(lambda: of_queries(listener.port)["spark_log_query_lag_records"] == 1)
            found = scraped(listener.port)
            assert firing(found, found, 1) == {"SparkLogQueryStalled", _NO_COORDINATOR}


@pytest.mark.slow
def test_a_query_goes_on_while_the_store_of_its_reports_is_down(spark, cluster, log, tmp_path):
    topic = create_topic(cluster, "t")
    server = PostgresServer()
    server.start()
    try:
        with (
            Cluster.init(server.create_database(), log_dir=str(tmp_path / "log-dir")) as reports,
            observing_queries(spark, reports, record_interval_s=0.05) as listener,
        ):
            reports.store.read_timeout_ms = 1_000 * int(LIMIT_S)  # the listener has shorter ones of its own
            with running(counts(spark, cluster, tmp_path)) as query:
                log.append(topic, [Records(0, table("a"))])
                query.processAllAvailable()
                wait_until(lambda: read_queries(reports, from_ms=0))
                server.kill()
                for _ in range(3):
                    log.append(topic, [Records(0, table("a", "b"))])
                    query.processAllAvailable()
                wait_until(lambda: listener.queries()[0].total_rows == 7)
                assert query.isActive and query.exception() is None
    finally:
        server.kill()
        server.remove()


def test_events_beyond_the_queue_are_dropped_and_not_waited_for(cluster):
    listener = SparkLogListener(cluster, record=False)
    listener.request_stop()[0].join(LIMIT_S)  # nothing takes events from the queue now
    for _ in range(2_000):
        listener.onQueryTerminated(None)
    assert listener.dropped >= 900
    listener.close()


@pytest.mark.parametrize(("interval", "recorded"), [("1000", 1), ("-1", 0)])
def test_queries_are_recorded_unless_the_history_is_off(cluster, interval, recorded):
    alter_settings(cluster, {"metrics.interval.ms": interval})
    listener = SparkLogListener(cluster)
    listener.onQueryStarted(QueryStartedEvent(uuid4(), uuid4(), "n", "2026-01-01T00:00:00Z", set()))
    listener.close()
    assert len(read_queries(cluster, from_ms=0)) == recorded
    assert len(listener.queries()) == 1


def test_a_store_that_does_not_answer_takes_away_only_the_lags_of_its_queries(cluster, monkeypatch):
    asked, written = [], []

    def lag(_cluster, ends):
        asked.append(ends)
        if ends == ("far",):
            raise MetadataStoreUnavailableError("store 1 does not answer")
        return {TopicPartition("t", 0): 5}

    monkeypatch.setattr(query_listener, "lag_by_partition", lag)
    monkeypatch.setattr(query_listener, "_LAG_CACHED_S", 0.0)
    monkeypatch.setattr(
        query_listener, "append_records", lambda _cluster, _topic, records, **_: written.extend(records)
    )
    listener = SparkLogListener(cluster, record_interval_s=0.0)
    listener.request_stop()[0].join(LIMIT_S)  # the steps of its thread are made here
    for name in ("far", "near"):
        listener._keep(QueryFacts(name, "run", name, ends=(name,)))
    for _ in range(3):
        assert [(query.name, query.lag) for query in listener.queries()] == [("far", None), ("near", 5)]
        listener._step(None, last=False)
    assert sorted(record.key for record in written) == ["far", "near"]
    assert asked.count(("far",)) == 1  # it is not asked again for some seconds
    listener.close()


def test_records_pause_only_after_an_append_that_failed(cluster, monkeypatch):
    attempts = []

    def append(*_, **__):
        attempts.append(1)
        raise MetadataStoreUnavailableError("the home store does not answer")

    listener = SparkLogListener(cluster, record_interval_s=0.0)
    listener.request_stop()[0].join(LIMIT_S)
    listener._keep(QueryFacts("id", "run", "name"))
    monkeypatch.setattr(query_listener, "append_records", append)
    monkeypatch.setattr(listener, "_handle", lambda *_: 1 / 0)
    for event in (("no event", 0), None, None):
        listener._step(event, last=False)
    assert len(attempts) == 1
    listener.close()
