"""Computes the metrics of the tables of topics. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, Metric, SummaryMetricFamily

from spark_log.cluster.topics import Topic
from spark_log.facts.metrics.cluster_snapshot import ClusterSnapshot
from spark_log.facts.metrics.exposition import Gauges
from spark_log.tables.lag_measurement import lag_bound_ms
from spark_log.tables.table_work import Tables, TableWork
from spark_log.tables.topic_tables import targets

_LABELS = ("topic", "target")


def table_metrics(snapshot: ClusterSnapshot) -> Iterator[Metric]:
    """Yield the number and age of the records that tables in online log dirs lack, the bound of that age, the number of
    tables in offline log dirs, and the number of commits.
    """
    topics = snapshot.topics
    records: dict[tuple[str, ...], float] = {
        (topic.name, target): 0 for topic in topics.values() for target in targets(topic)
    }
    age, offline = dict(records), dict(records)
    for key, lag in snapshot.table_lags.items():
        labels = (topics[key.topic_id].name, key.target) if key.topic_id in topics else ()
        if labels in records:
            records[labels] = max(records[labels], lag.records)
            age[labels] = max(age[labels], max(0, snapshot.now_ms - lag.oldest_ms) / 1000)
    for (topic_id, target), count in snapshot.offline_tables.items():
        labels = (topics[topic_id].name, target) if topic_id in topics else ()
        if labels in offline:
            offline[labels] = count
    bounds = {
        (topic.name, target): bound_ms / 1000
        for topic in topics.values()
        for target in targets(topic)
        if (bound_ms := lag_bound_ms(topic, target)) is not None
    }
    for name, text, values in (
        ("spark_log_unpublished_records", "Records that the topic's table does not list yet.", records),
        ("spark_log_publication_age_seconds", "Age of the oldest of these records; 0: there is none.", age),
        ("spark_log_tables_offline", "Tables in failed log dirs, which lack what was published since then.", offline),
        ("spark_log_table_lag_bound_seconds", "Age by which the table is to list a record; none: no bound.", bounds),
    ):
        yield Gauges(name, text, _LABELS, values.items())
    commits: dict[tuple[str, str], int] = defaultdict(int)
    for key, number in snapshot.publications.items():
        if key.topic_id in topics and (topics[key.topic_id].name, key.target) in records:
            commits[topics[key.topic_id].name, key.target] += number
    counter = CounterMetricFamily("spark_log_table_publications", "Commits of spark-log to the table.", labels=_LABELS)
    for labels, number in commits.items():
        counter.add_metric(labels, number)
    yield counter


def work_metrics(topics: Iterable[Topic], work: Mapping[Tables, TableWork]) -> Iterator[Metric]:
    """Yield what this process has done for the tables of these topics."""
    seconds = SummaryMetricFamily(
        "spark_log_table_publication_seconds", "Publications by this process, and their time.", labels=_LABELS
    )
    files: list[tuple[tuple[str, str], float]] = []
    for topic in topics:
        for target in targets(topic):
            done = work.get(Tables(topic.uuid, target), TableWork())
            if done.publications:
                seconds.add_metric((topic.name, target), done.publications, done.seconds)
            if done.log_files:
                files.append(((topic.name, target), sum(done.log_files.values())))
    yield seconds
    yield Gauges("spark_log_table_log_files", "Files of the table's log when this process last maintained it.",
                 _LABELS, files)  # fmt: skip
