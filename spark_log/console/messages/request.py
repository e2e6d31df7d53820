"""Turns the parameters of a request for messages, from a page, the API or a download, into a search."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass

from spark_log.cluster.topics import Topic
from spark_log.console.masks import Masks
from spark_log.console.search.filter import compile_filter
from spark_log.console.search.filter_syntax import FilterError
from spark_log.console.search.operands import time_of
from spark_log.console.search.position import Position
from spark_log.console.search.search import Conditions
from spark_log.errors import InvalidOptionError
from spark_log.ids import TopicPartition
from spark_log.log.reader import LogReader
from spark_log.log.segments.slices import Positions

STARTS = ("latest", "earliest", "offset", "time")
FORMS = ("auto", "text", "json", "hex", "columns")
ENCODINGS = ("text", "base64", "hex")
COUNT_MAX = 500


@dataclass(frozen=True)
class Asked:
    """The form with the values of the request. A missing parameter is an empty text.

    `token` continues a search and replaces `start`.
    """

    partition: str = ""
    start: str = "latest"
    offset: str = ""
    time: str = ""
    key: str = ""
    key_encoding: str = "text"
    header: str = ""
    filter: str = ""
    count: int = 50
    format: str = "auto"
    token: str = ""

    @property
    def query(self) -> dict[str, object]:
        """The parameters that differ from the defaults, without the token."""
        usual = Asked()
        names = [name for name in vars(usual) if name != "token" and getattr(self, name) != getattr(usual, name)]
        return {name: getattr(self, name) for name in names}

    @property
    def live(self) -> bool:
        """Whether the request is for the newest messages, which a live tail shows."""
        return self.start == "latest" and not self.token


def asked(query: Mapping[str, str], count_max: int = COUNT_MAX) -> Asked:
    """Return the form of a request. Raises InvalidOptionError that names an invalid parameter."""
    texts = {name: query[name].strip() for name in ("partition", "offset", "time", "header", "filter") if name in query}
    usual = Asked(key=query.get("key", ""), token=query.get("token", ""))
    values: dict[str, object] = {
        **vars(usual),
        **texts,
        "count": _number("count", query.get("count") or "50", 1, count_max),
    }
    for name, choices in (("start", STARTS), ("format", FORMS), ("key_encoding", ENCODINGS)):
        values[name] = query.get(name) or getattr(usual, name)
        if values[name] not in choices:
            raise InvalidOptionError(f"{name}: {values[name]!r} is none of {', '.join(choices)}")
    return Asked(**values)  # type: ignore[arg-type]


def conditions(asked: Asked, topic: Topic, masks: Masks) -> Conditions:
    """Return the conditions of a search.

    Raises FilterError and InvalidOptionError. A condition on a field that the role masks is an error too, since it
    would reveal the value.
    """
    if asked.key and masks.hides(("key",)):
        raise FilterError("key: keys are hidden from you; a search cannot use them")
    name, separator, value = asked.header.partition("=")
    if asked.header and masks.hides(("headers", name)):
        raise FilterError(f"header: {name} is hidden from you; a search cannot use it")
    typed = topic.columns.fields if topic.columns is not None else None
    return Conditions(
        decoded("key", asked.key, asked.key_encoding) if asked.key else None,
        (name, value.encode() if separator else None) if asked.header else None,
        compile_filter(asked.filter, typed, masks.hides) if asked.filter else None,
    )


def position(asked: Asked, topic: Topic, log: LogReader) -> Position:
    """Return the position where the search begins or continues."""
    limits = {tp.partition: at for tp, at in log.positions(topic).items()}
    if asked.token:
        return Position.of_token(asked.token, topic.topic_id, limits)
    chosen = limits
    if asked.partition:
        number = _number("partition", asked.partition, 0, topic.partition_count - 1)
        chosen = {number: limits[number]}
    first = _first(asked, topic, log, chosen)
    return Position.begin(topic.topic_id, asked.start == "latest", first, limits)


def _first(asked: Asked, topic: Topic, log: LogReader, chosen: Mapping[int, Positions]) -> dict[int, int]:
    match asked.start:
        case "earliest":
            return {partition: at.log_start_offset for partition, at in chosen.items()}
        case "offset":
            offset = _number("offset", asked.offset or "0", 0, 2**63 - 1)
            return dict.fromkeys(chosen, offset)
        case "time":
            time_ms = _time_ms(asked.time)
            found = log.offsets_for_times(topic, dict.fromkeys(chosen, time_ms))
            ends = {p: at.high_watermark for p, at in chosen.items()}
            return {p: ends[p] if at is None else at for p, at in found.items()}
    return {partition: at.high_watermark for partition, at in chosen.items()}


def _time_ms(text: str) -> int:
    if text.isascii() and text.isdigit():
        return _number("time", text, 0, 253_402_300_799_999)
    try:
        return int(time_of(text, None).timestamp() * 1000)
    except FilterError:
        raise InvalidOptionError(f"time: {text!r} is neither ms since 1970 nor such as 2026-11-22T16:50:00Z") from None


def _number(name: str, text: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high):
        raise InvalidOptionError(f"{name}: {text!r} is not a whole number from {low} to {high}")
    return int(text)


def decoded(name: str, text: str, encoding: str) -> bytes:
    """Return the bytes that a text encodes. Raises InvalidOptionError."""
    try:
        match encoding:
            case "base64":
                return base64.b64decode(text, validate=True)
            case "hex":
                return bytes.fromhex(text)
        return text.encode()
    except (ValueError, binascii.Error):
        raise InvalidOptionError(f"{name}: not {encoding}") from None


def partition_of(wanted: Mapping[str, str], topic: Topic) -> TopicPartition:
    """Return the partition in a path. Raises InvalidOptionError."""
    return TopicPartition(topic.name, _number("partition", wanted["partition"], 0, topic.partition_count - 1))


def offset_of(wanted: Mapping[str, str]) -> int:
    return _number("offset", wanted["offset"], 0, 2**63 - 2)
