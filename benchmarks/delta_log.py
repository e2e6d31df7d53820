"""Opening a Delta table that has had a commit every 3 s for two days, beside a table with the same active files and one
checkpoint. Part of `make bench-tables`.

The table's log is written as publication does, without its segment files: a commit adds a file, or joins 8 files of a
level into one of the next, as merging does; each file of the log has the time that it would have, so that the last
commit is of now. After each 100 commits the log is checkpointed, and each hour cleaned up as by maintenance, which does
it after each checkpoint: the files that are left are the same. The tables are opened with deltalake in turns, --rounds
times after a warm-up, and the medians are compared. A copy without the log files below the last checkpoint shows how
much of the time the listing of the log takes; the rest is for the removed files of the last day.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

from deltalake import DeltaTable

from benchmarks.kafka_report import OURS, Bar, Row, parser, print_rows
from benchmarks.setup import medians, seconds_in_turns
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDir
from spark_log.cluster.topics import Topic
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.tables.delta_table import CHECKPOINT_COMMITS, open_table
from spark_log.tables.log_clean_up import clean_up
from spark_log.tables.publication_state import PublishedFile
from spark_log.tables.unopened_commit import commit_content, commit_path

OPENING_BAR, FILES_BAR = 2, 30_600
RECENT, PEER = f"{OURS}, without files below the last checkpoint", "one checkpoint"
_EVERY_MS = 3_000
_HOUR_COMMITS = 3_600_000 // _EVERY_MS
_RECORDS, _BYTES = 12, 4_000
"""Of a file that was sealed after 3 s."""
_MERGED = 8


def file_changes(commits: int) -> Iterator[tuple[list[PublishedFile], list[str]]]:
    """Yield the files that each commit adds and the paths that it removes."""
    numbers = count()
    levels: list[list[PublishedFile]] = [[]]
    offset = 0
    for _ in range(commits):
        full = next((level for level, files in enumerate(levels) if len(files) == _MERGED), None)
        if full is None:
            offset += _RECORDS
            file = _file(next(numbers), offset - _RECORDS, offset)
            levels[0].append(file)
            yield [file], []
        else:
            merged = levels[full]
            file = _file(next(numbers), merged[0].base_offset, merged[-1].end_offset)
            levels[full] = []
            levels += [[]] if full + 1 == len(levels) else []
            levels[full + 1].append(file)
            yield [file], [each.path for each in merged]


def _file(number: int, base_offset: int, end_offset: int) -> PublishedFile:
    path, records = f"_segments/0/{number:032x}-0.parquet", end_offset - base_offset
    return PublishedFile(path, 0, base_offset, end_offset, records * _BYTES // _RECORDS, records, 0, False)


def write_log(log_dir: LogDir, topic: Topic, commits: int, now_ms: int) -> list[PublishedFile]:
    """Write the log of the topic's table. Returns the active files."""
    open_table(log_dir, topic, create=True)
    table = DeltaTable(log_dir.location(topic.folder))
    log = Path(log_dir.location(f"{topic.folder}/_delta_log"))
    active: dict[str, PublishedFile] = {}
    _set_time(log / f"{0:020d}.json", now_ms - commits * _EVERY_MS)
    for version, (add, remove) in enumerate(file_changes(commits), 1):
        at_ms = now_ms - (commits - version) * _EVERY_MS
        path = Path(log_dir.location(commit_path(topic.folder, version)))
        path.write_bytes(commit_content(add, remove, {}, [topic.uuid], version, at_ms))
        _set_time(path, at_ms)
        active |= {file.path: file for file in add}
        for each in remove:
            del active[each]
        if version % CHECKPOINT_COMMITS == 0:
            table.update_incremental()
            table.create_checkpoint()
            _set_time(log / f"{version:020d}.checkpoint.parquet", at_ms)
            if version % _HOUR_COMMITS == 0 or version > commits - CHECKPOINT_COMMITS:
                clean_up(log_dir, log_dir.entries(f"{topic.folder}/_delta_log"), topic.config, at_ms)
    return list(active.values())


def _set_time(path: Path, at_ms: int) -> None:
    os.utime(path, (at_ms / 1000, at_ms / 1000))


def measure(cluster: Cluster, log_dir: LogDir, commits: int, rounds: int) -> Iterator[Row]:
    now_ms = time.time_ns() // 1_000_000
    ours, peer = (create_topic(cluster, name) for name in ("ours", "peer"))
    active = write_log(log_dir, ours, commits, now_ms)
    open_table(log_dir, peer, create=True)
    content = commit_content(active, [], {}, [peer.uuid], 1, now_ms)
    Path(log_dir.location(commit_path(peer.folder, 1))).write_bytes(content)
    DeltaTable(log_dir.location(peer.folder)).create_checkpoint()
    recent = _copy_recent(Path(log_dir.location(ours.folder)), DeltaTable(log_dir.location(ours.folder)).version())
    locations = {OURS: log_dir.location(ours.folder), RECENT: str(recent), PEER: log_dir.location(peer.folder)}
    for location in locations.values():
        assert len(DeltaTable(location).file_uris()) == len(active)
    medians_s = medians(seconds_in_turns({who: partial(DeltaTable, each) for who, each in locations.items()}, rounds))
    shown = {who: f"{1000 * seconds:.1f} ms" for who, seconds in medians_s.items()}
    what = f"opening a Delta table of {len(active)} files after {commits:,} commits"
    yield Row(what, shown, medians_s).with_limit(OURS, OPENING_BAR, PEER)
    files = {who: len(list(Path(location, "_delta_log").iterdir())) for who, location in locations.items()}
    bar = Bar(OURS, f"<= {FILES_BAR:,}", files[OURS] <= FILES_BAR)
    yield Row("files of its log", {who: f"{number:,}" for who, number in files.items()}, {}, [bar])


def _copy_recent(table: Path, version: int) -> Path:
    """Copy the files of the table's log from the last checkpoint on. Returns the new table."""
    log = table / "_delta_log"
    copy = table.with_name("recent")
    (copy / "_delta_log").mkdir(parents=True)
    first = version // CHECKPOINT_COMMITS * CHECKPOINT_COMMITS
    for number in range(first, version + 1):
        for name in (f"{number:020d}.json", f"{number:020d}.checkpoint.parquet"):
            if (log / name).exists():
                shutil.copy(log / name, copy / "_delta_log")
    shutil.copy(log / "_last_checkpoint", copy / "_delta_log")
    return copy


def main() -> None:
    options = parser(__doc__, rounds=9)
    options.add_argument("--commits", type=int, default=57_600)
    arguments = options.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as name,
        Cluster.init(f"{name}/cluster") as cluster,
    ):
        [info] = cluster.log_dirs().values()
        rows = list(measure(cluster, cluster.log_dir(info), arguments.commits, arguments.rounds))
    print_rows("the log of a Delta table", rows, arguments.json)


if __name__ == "__main__":
    main()
