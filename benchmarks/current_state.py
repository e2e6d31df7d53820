"""How long a topic's current-state table takes to follow updates, beside a MERGE by delta-rs, and how fast Spark reads
it. Part of `make bench-tables`.

A topic of one partition has --keys keys in ten files. In each round, --changed random keys get a new value, in this
topic and in one without such a table: the difference of the times of their rounds (seal and publish) is that of the
publication to `_current`. Its peer is the MERGE of the same keys into a Delta table. Then Spark reads all columns of
the table, of the files without vectors, and `read_table` without the table.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from benchmarks.machine import seconds_of
from benchmarks.setup import medians, parser, print_table, records, seconds_in_turns
from benchmarks.throughput import spark_session
from spark_log import DELTA_SETTINGS, Cluster, create_topic
from spark_log.cluster.log_dir import LogDir
from spark_log.cluster.topics import Topic
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.spark.streams.compacted_tables import read_table
from spark_log.tables.publication_state import CURRENT, table_folder

_FILES = 10
_WARM_UP = 5


def main() -> None:
    options = parser(__doc__, rounds=10)
    options.add_argument("--keys", type=int, default=1_000_000)
    options.add_argument("--changed", type=int, default=1_000)
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as name:
        rows = _measure(Path(name), arguments.keys, arguments.changed, arguments.rounds)
    title = f"{arguments.keys:,} keys, {arguments.changed:,} of them changed in each round"
    print_table(title, ("what", "ours", "peer", "ratio", "bar"), rows)


def _measure(folder: Path, keys: int, changed: int, rounds: int) -> list[tuple[str, ...]]:
    address = str(folder / "cluster")
    with Cluster.init(address) as cluster:
        configs = {"cleanup.policy": "compact", "delta.max.lag.ms": "-1", "table.current": "delta"}
        topic = create_topic(cluster, "t", 1, configs={**configs, "inline.max.bytes": "1000000"})
        plain = create_topic(cluster, "plain", 1, configs={"inline.max.bytes": "1000000", "delta.max.lag.ms": "-1"})
        assert topic is not None and plain is not None
        log = ClientLog(cluster)
        for number in range(_FILES):
            for each in (topic, plain):
                _append(log, each, range(number, keys, _FILES), "first")
        log.close()
        updates = _updates(cluster, topic, plain, folder / "merged", keys, changed, rounds)
        [info] = cluster.log_dirs().values()
        log_dir = LogDir(info.uri)
        current = log_dir.location(table_folder(topic, CURRENT))
        reads = _reads(folder, address, log_dir.location(topic.folder), current, rounds)
    return [*updates, *reads]


def _updates(
    cluster: Cluster, topic: Topic, plain: Topic, peer: Path, keys: int, changed: int, rounds: int
) -> list[tuple[str, ...]]:
    [info] = cluster.log_dirs().values()
    folder = Path(LogDir(info.uri).location(table_folder(topic, CURRENT)))
    write_deltalake(str(peer), _rows(range(keys), "first"))
    chance, log = random.Random(0), ClientLog(cluster)
    measured: list[tuple[float, float, float, int, int]] = []
    for number in range(rounds + 1):
        some = chance.sample(range(keys), changed)
        _append(log, topic, some, f"round {number}")
        _append(log, plain, some, f"round {number}")
        before, peer_before = _bytes_in(folder), _bytes_in(peer)
        both_s = seconds_of(lambda: log.seal(topic, [0]))  # and publish
        plain_s = seconds_of(lambda: log.seal(plain, [0]))
        table, changes = DeltaTable(str(peer)), _rows(some, f"round {number}")
        peer_s = seconds_of(lambda: _merge(table, changes))  # noqa: B023
        measured.append((both_s, plain_s, peer_s, _bytes_in(folder) - before, _bytes_in(peer) - peer_before))
    log.close()
    both, without, theirs, ours_bytes, peer_bytes = (
        statistics.median(each) for each in zip(*measured[1:], strict=True)
    )
    return [
        (
            "publication to _current / MERGE",
            _ms(both - without),
            _ms(theirs),
            f"{(both - without) / theirs:.2f}",
            "<= 0.2",
        ),
        ("all of a round / MERGE", _ms(both), _ms(theirs), f"{both / theirs:.2f}", ""),
        ("bytes written", f"{ours_bytes:,.0f}", f"{peer_bytes:,.0f}", f"{ours_bytes / peer_bytes:.4f}", "<= 0.01"),
    ]


def _reads(folder: Path, address: str, files: str, current: str, rounds: int) -> list[tuple[str, ...]]:
    # Delta plans a query on each table by jobs of 50 tasks by default, three of them with deletion vectors
    spark = spark_session(folder, {**DELTA_SETTINGS, "spark.databricks.delta.snapshotPartitions": "2"})
    count = [F.count("*"), *(F.sum(F.length(name)) for name in ("key", "value")), F.max("timestamp")]

    sources: dict[str, Callable[[], DataFrame]] = {
        "current": lambda: spark.read.format("delta").load(current),
        "fresh": lambda: read_table(spark, address, "t"),
        "aggregated": lambda: read_table(spark, address, "t", current="never"),
        "files": lambda: spark.read.format("delta").load(files),
    }

    def collect(read: Callable[[], DataFrame]) -> None:
        read().agg(*count).collect()

    queries = {name: partial(collect, read) for name, read in sources.items()}
    ours, fresh, aggregated, without = medians(seconds_in_turns(queries, rounds, _WARM_UP)).values()
    spark.stop()
    return [
        ("scan of _current / aggregation", _ms(ours), _ms(aggregated), f"{aggregated / ours:.2f}", ">= 2"),
        ("read_table / aggregation", _ms(fresh), _ms(aggregated), f"{aggregated / fresh:.2f}", ""),
        ("scan of _current / of the files without vectors", _ms(ours), _ms(without), f"{without / ours:.2f}", ">= 0.7"),
    ]


def _merge(table: DeltaTable, changes: pa.Table) -> None:
    merge = table.merge(changes, "t.key = s.key", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


def _append(log: ClientLog, topic: Topic, keys: Iterable[int], value: str) -> None:
    log.append(topic, [Records(0, _rows(keys, value))])


def _rows(keys: Iterable[int], value: str) -> pa.Table:
    names = [f"key-{key}".encode() for key in keys]
    values = [f"{value} {name.decode() * 4}".encode() for name in names]
    return records(pa.array(values, pa.binary()), pa.array(names, pa.binary()), time.time_ns() // 1_000_000)


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"


if __name__ == "__main__":
    main()
