"""Shows the preview of a redrive of dead letters, and runs the redrive (page `/topics/{topic}/redrive`).

The preview shows how many letters would be copied to each topic. The redrive copies exactly these letters, each of them
once. The redrive is refused if letters of the preview were copied or removed meanwhile. The user needs the rights to
produce and to change offsets, since the offsets of group `redrive-<topic>` say which letters are copied.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_log import clock
from spark_log.console.listing import number_in
from spark_log.console.masks import masks_of
from spark_log.console.paths import url
from spark_log.console.routes import Allow, Call, Change, Done, Forbidden, View
from spark_log.errors import InvalidConfigurationError
from spark_log.groups.share.dead_letters import PREFIX
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.text import count_of

if TYPE_CHECKING:
    from spark_log.spark.streams.redrive import Redrive

REDRIVE = "RedriveDeadLetters"
"""The name of the change in the audit, which `spark-log share redrive` uses too."""
LETTERS, LETTERS_MAX = 1_000, 10_000
"""The number of letters of a redrive: the default, and the largest."""
_SECONDS_MAX = 20.0
"""The time after which a request begins no other transaction."""


@dataclass(frozen=True)
class RedriveRow:
    """The number of letters that would be copied to a topic."""

    topic: str
    letters: int


@dataclass(frozen=True)
class RedrivePage:
    """The form, and the preview of a redrive.

    `rows` is None until the query asks for a preview. `copies` is the number of all copies, and `missing` that of the
    letters whose record is gone. `is_complete` is whether these are all letters of the topic. `letters` is the JSON of
    the letters that are copied, a list of partition, first offset and end.
    """

    topic: str
    group: str
    may_redrive: bool
    to: str
    limit: int
    skip_missing: bool
    rows: Sequence[RedriveRow] | None = None
    copies: int = 0
    missing: int = 0
    is_complete: bool = True
    letters: str = "[]"


@dataclass(frozen=True)
class RedriveResult:
    """The number of copies by topic, and of the letters that were skipped because their record is gone. `is_complete`
    is whether all letters of the preview are copied.
    """

    copied: Mapping[str, int]
    missing: int
    is_complete: bool


def _page(call: Call) -> RedrivePage:
    topic = call.topic(call.path["topic"]).name
    may_redrive = call.may(Allow.PRODUCE) and call.may(Allow.OFFSETS)
    to, skip_missing, group = call.query.get("to", "").strip(), _skips_missing(call.query), f"redrive-{topic}"
    if "limit" not in call.query:
        return RedrivePage(topic, group, may_redrive, to, LETTERS, skip_missing)
    _check_rights(call)
    limit = number_in(call.query, "limit", LETTERS, LETTERS_MAX)
    with _redrive(call, to, limit) as redrive:
        preview = redrive.preview()
    rows = [RedriveRow(name, count) for name, count in sorted(preview.copied.items())]
    letters = [[tp.partition, each.start, each.end] for tp, each in sorted(preview.letters.items())]
    return RedrivePage(
        topic, group, may_redrive, to, limit, skip_missing, rows, preview.copied.total(), preview.missing,
        preview.is_complete, json.dumps(letters),
    )  # fmt: skip


def _check_rights(call: Call) -> None:
    call.require(Allow.PRODUCE)
    call.require(Allow.OFFSETS)
    if not call.role.messages or masks_of(frozenset(call.role.masked)).hides(("headers", f"{PREFIX}topic")):
        raise Forbidden("Your role does not show the headers of messages, which say where dead letters come from.")


def _skips_missing(fields: Mapping[str, str]) -> bool:
    return fields.get("skip_missing") in ("1", "true")


def _redrive(
    call: Call,
    to: str,
    limit: int,
    *,
    skip_missing: bool = False,
    letters: Mapping[TopicPartition, OffsetRange] | None = None,
) -> "Redrive":
    from spark_log.spark.streams.redrive import Redrive

    def check_topics(names: Collection[str]) -> None:
        if not all(map(call.sees, names)):
            raise Forbidden("Some letters are of topics that your role does not show.")

    end_s = clock.monotonic_s() + _SECONDS_MAX
    return Redrive(
        call.cluster,
        call.topic(call.path["topic"]).name,
        to=call.topic(to).name if to else None,
        limit=limit,
        skip_missing=skip_missing,
        letters=letters,
        check_topics=check_topics,
        is_over=lambda: call.left.is_set() or clock.monotonic_s() >= end_s,
    )


def _apply(call: Call) -> Done:
    """Copy the letters of field `letters`, which has the format of the preview."""
    _check_rights(call)
    topic = call.topic(call.path["topic"]).name
    letters = _parse_letters(call.form.get("letters", ""), topic)
    to, skip_missing = call.form.get("to", "").strip(), _skips_missing(call.form)
    with _redrive(call, to, LETTERS_MAX, skip_missing=skip_missing, letters=letters) as redrive:
        done = redrive.run()
        is_complete = redrive.is_done()
    text = f"Copied {count_of(done.copied.total(), 'letter')} of topic {topic}."
    if done.missing:
        text += f" Skipped {count_of(done.missing, 'letter')} without a record."
    if not is_complete:
        text += " There was no time for the others: preview them again."
    result = RedriveResult(done.copied, done.missing, is_complete)
    return Done(url("/topics/{topic}/redrive", topic=topic), text, result)


def _parse_letters(text: str, topic: str) -> dict[TopicPartition, OffsetRange]:
    expected = "letters: expected a JSON list of [partition, first offset, end]"
    try:
        rows = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise InvalidConfigurationError(f"{expected}: {error}") from error
    letters = {}
    for row in rows if isinstance(rows, list) else [None]:
        match row:
            case [int(partition), int(start), int(end)]:
                letters[TopicPartition(topic, partition)] = OffsetRange(start, end)
            case _:
                raise InvalidConfigurationError(f"{expected}, got {row!r}")
    if not letters:
        raise InvalidConfigurationError(f"{expected}: it is empty")
    return letters


VIEWS = (View("/topics/{topic}/redrive", "redrive.html", _page),)
CHANGES = (Change("/topics/{topic}/redrive", Allow.PRODUCE, _apply, action=REDRIVE),)
