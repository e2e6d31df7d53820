"""Shows searches, the live tail and single messages, and serves downloads (pages `/topics/{topic}/messages`)."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.console.masks import Masks, masks_of
from spark_log.console.messages.export import COLUMNS, csv_line, csv_row, exported, ndjson
from spark_log.console.messages.message import Message, Shown, message_of, rows_of, shown, visible
from spark_log.console.messages.request import (
    Asked,
    asked,
    conditions,
    offset_of,
    partition_of,
    position,
)
from spark_log.console.routes import Allow, Call, Download, Forbidden, NotFound, Stream, View
from spark_log.console.search.search import Budget, RunningSearches, Search
from spark_log.errors import OffsetOutOfRangeError
from spark_log.ids import OffsetRange
from spark_log.log.columns.envelope import DEBEZIUM
from spark_log.log.reader import LogReader
from spark_log.log.records.schema import read_schema

BYTES_MAX, SECONDS_MAX = 256 << 20, 10.0
"""The budget of a search."""
LIVE_BYTES_MAX, LIVE_SECONDS_MAX = 32 << 20, 1.0
"""The budget of each request of a live tail."""
DOWNLOAD_BYTES_MAX, DOWNLOAD_SECONDS_MAX, DOWNLOAD_COUNT_MAX = 4 << 30, 600.0, 1_000_000
PART_BYTES = 64 << 10
"""The size of a part of a download, which is larger only if one message is. A part waits in memory for a slow browser.
"""
SEARCHES_MAX = 16
"""The maximum number of searches and pages of messages of all users at a time."""
SHORT, WHOLE = 300, 2 << 20
"""The maximum number of characters of a key, value or header in a table, and on the page of one message."""
TABLE_COLUMNS_BYTES = 32 << 20
"""The maximum size of the typed columns of all messages in a table."""

running = RunningSearches()


@dataclass(frozen=True)
class PartitionProgress:
    """The progress in a partition.

    `next` is the offset where the search continues. `done` is the share of the offsets that the search has passed.
    """

    partition: int
    next: int
    done: float


@dataclass(frozen=True)
class Progress:
    """The progress of a search.

    `stopped_by` is count, bytes, seconds, another search, or empty if it is complete. `bytes` is None for a role with
    masked fields, since it would reveal their length.
    """

    records: int
    matched: int
    bytes: int | None
    seconds: float
    stopped_by: str
    partitions: tuple[PartitionProgress, ...]
    token: str | None
    """The token that continues the search, or None if all offsets have been searched, or there are too many partitions.
    """


@dataclass(frozen=True)
class Messages:
    """The messages of the page.

    `columns` are the fields of the typed values, for format=columns. If `part` is true, only the rows are rendered.
    """

    topic: str
    partitions: int
    asked: Asked
    messages: tuple[Message, ...]
    progress: Progress
    columns: tuple[str, ...]
    may_produce: bool
    live: bool
    part: bool

    @property
    def query(self) -> dict[str, object]:
        return self.asked.query

    def cell(self, message: Message, column: str) -> str:
        """Return a field of the typed value as text."""
        value = message.record.get(column) if isinstance(message.record, dict) else None
        text = "" if value is None else visible(value)
        return text if len(text) <= SHORT else f"{text[:SHORT]}\N{HORIZONTAL ELLIPSIS}"


@dataclass(frozen=True)
class WholeMessage:
    """A message, with its key and value in every form. `cut` is whether a form shows only the beginning."""

    message: Message
    key: tuple[Shown, ...]
    value: tuple[Shown, ...]
    record: str | None
    key_record: str | None
    cut: bool
    previous: int | None
    next: int | None
    may_produce: bool
    may_download: dict[str, bool]


def _may_read(call: Call) -> tuple[Topic, Masks]:
    topic = call.topic(call.path["topic"])
    if not call.role.messages:
        raise Forbidden("Your role does not show messages.")
    return topic, masks_of(frozenset(call.role.masked), envelope=topic.config.value_envelope == DEBEZIUM)


def _messages(call: Call) -> Messages:
    topic, masks = _may_read(call)
    query = asked(call.query)
    wants = conditions(query, topic, masks)
    live = query.live and call.query.get("live") == "1"
    # a page without conditions, and a live tail, do not stop the user's search
    kind = "live tail" if live else "search" if wants else "page"
    name = f"{kind} of {call.user.name}"
    with closing(LogReader(call.cluster)) as log, running.of(name, SEARCHES_MAX) as superseded:
        limits = (LIVE_BYTES_MAX, LIVE_SECONDS_MAX) if live else (BYTES_MAX, SECONDS_MAX)
        budget = Budget(*limits, lambda: superseded() or call.left.is_set())
        search = Search(log, topic, position(query, topic, log), wants, query.count, budget)
        form = "auto" if query.format == "columns" else query.format
        rows = [
            message_of(row, form, masks, SHORT)
            for batch in search.batches()
            for row in rows_of(batch, TABLE_COLUMNS_BYTES // query.count)
        ]
    backwards = search.position.backwards
    rows.sort(key=lambda each: (each.timestamp_ms, each.partition, each.offset), reverse=backwards)
    names = [field.name for field in topic.columns.value.fields] if topic.columns and topic.columns.value else []
    return Messages(
        topic.name, topic.partition_count, query, tuple(rows),
        _progress(search, superseded(), masks == Masks()), tuple(names),
        call.may(Allow.PRODUCE), live, call.query.get("part") == "1",
    )  # fmt: skip


def _progress(search: Search, superseded: bool, unmasked: bool) -> Progress:
    at, budget = search.position, search.budget
    partitions = tuple(PartitionProgress(p, at.next[p], at.done(p)) for p in sorted(at.next))
    reasons = (
        (search.complete, ""),
        (superseded, "another search"),
        (budget.used_bytes >= budget.bytes_max, "bytes"),
        (budget.seconds >= budget.seconds_max, "seconds"),
        (True, "count"),
    )
    token = None if search.complete and at.backwards else at.token
    stopped_by = next(text for found, text in reasons if found)
    return Progress(
        search.records,
        search.matched,
        budget.used_bytes if unmasked else None,
        round(budget.seconds, 3),
        stopped_by,
        partitions,
        token,
    )


def message_row(cluster: Cluster, topic: Topic, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the row (`rows_of`) of the message at `partition` and `offset` of `names`. Raises NotFound."""
    partition, offset = partition_of(names, topic), offset_of(names)
    schema = read_schema(include_headers=True, typed=topic.columns.fields if topic.columns else None)
    with closing(LogReader(cluster)) as log:
        try:
            batches = log.read({partition: OffsetRange(offset, offset + 1)}, schema, topics={topic.name: topic})
            for batch in batches:
                return next(rows_of(batch))
        except OffsetOutOfRangeError:
            pass
    raise NotFound(f"{partition} has no message at offset {offset}")


def _message(call: Call) -> WholeMessage:
    topic, masks = _may_read(call)
    row = message_row(call.cluster, topic, call.path)
    message = message_of(row, "auto", masks, WHOLE)
    parts = {source: _forms(row[source], source, masks) for source in ("key", "value")}
    records = [
        None if found is None else visible(json.dumps(found, indent=2, ensure_ascii=False))
        for found in (message.record, message.key_record)
    ]
    offset = message.offset
    return WholeMessage(
        message, parts["key"], parts["value"], records[0], records[1],
        any(each.shortened for part in parts.values() for each in part),
        offset - 1 if offset else None, offset + 1,
        call.may(Allow.PRODUCE) and masks == Masks(),
        {source: row[source] is not None and not masks.of(source) for source in ("key", "value")},
    )  # fmt: skip


def _forms(data: bytes | None, source: str, masks: Masks) -> tuple[Shown, ...]:
    """Return the bytes as text, JSON and hex, in each form that fits them."""
    if data is None:
        return (Shown("null"),)
    allowed = masks.json_text(source, data)
    if allowed is None:
        return (Shown("hidden"),)
    found = [shown(allowed, "json", WHOLE), shown(allowed, "text", WHOLE), shown(allowed, "hex", WHOLE // 8)]
    return tuple({each.form: each for each in found}.values())


def _bytes(call: Call) -> Download:
    """Return the unchanged key or value of one message as a download."""
    topic, masks = _may_read(call)
    source = call.path["part"]
    if source not in ("key", "value"):
        raise NotFound(f"a message has no {source!r}: choose key or value")
    if masks.of(source):
        raise Forbidden(f"Your role hides a part of the {source}.")
    data = message_row(call.cluster, topic, call.path)[source]
    if data is None:
        raise NotFound(f"the {source} is null")
    name = f"{topic.name}-{call.path['partition']}-{call.path['offset']}.{source}"
    return Download("application/octet-stream", iter([data]), name)


def _download(call: Call, kind: str) -> Download:
    topic, masks = _may_read(call)
    query = asked(call.query, DOWNLOAD_COUNT_MAX)
    with closing(LogReader(call.cluster)) as log:
        start, wants = position(query, topic, log), conditions(query, topic, masks)
    budget = Budget(DOWNLOAD_BYTES_MAX, DOWNLOAD_SECONDS_MAX, call.left.is_set)

    def begin(log: LogReader) -> Search:
        return Search(log, topic, start, wants, query.count, budget)

    media = {"csv": "text/csv; charset=utf-8", "ndjson": "application/x-ndjson"}[kind]
    parts = _lines(call.cluster, begin, masks, kind, f"search of {call.user.name}")
    return Download(media, parts, f"{topic.name}.{kind}")


def _lines(
    cluster: Cluster, begin: Callable[[LogReader], Search], masks: Masks, kind: str, name: str
) -> Iterator[bytes]:
    """Yield the file in parts. If the budget is spent, its last line says so and has the token that continues the
    search.
    """
    with closing(LogReader(cluster)) as log, running.of(name) as superseded:
        search = begin(log)
        left = search.budget.stopped
        search.budget.stopped = lambda: superseded() or left()
        if kind == "csv":
            yield csv_line(COLUMNS)
        line = csv_row if kind == "csv" else ndjson
        lines: list[bytes] = []
        size = 0
        for rows in map(rows_of, search.batches()):
            for row in rows:
                lines.append(line(exported(row, masks)))
                size += len(lines[-1])
                if size > PART_BYTES:
                    yield b"".join(lines)
                    lines, size = [], 0
        if lines:
            yield b"".join(lines)
        if search.budget.spent and not search.complete:
            note = {"incomplete": True, "token": search.position.token}
            yield csv_line(["incomplete", search.position.token]) if kind == "csv" else ndjson(note)


def _csv(call: Call) -> Download:
    return _download(call, "csv")


def _ndjson(call: Call) -> Download:
    return _download(call, "ndjson")


VIEWS = (
    View("/topics/{topic}/messages", "messages.html", _messages),
    View("/topics/{topic}/messages/{partition}/{offset}", "message.html", _message),
)
STREAMS = (
    Stream("/topics/{topic}/messages.csv", _csv),
    Stream("/topics/{topic}/messages.ndjson", _ndjson),
    Stream("/topics/{topic}/messages/{partition}/{offset}/{part}", _bytes),
)
