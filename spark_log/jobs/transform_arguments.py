"""Arguments of `jobs/transform.py`. Pure, but for the file of --config."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_log.cluster.names import validate_user_topic
from spark_log.consume.settings import ConsumerSettings
from spark_log.datasource.option_text import OptionText
from spark_log.datasource.subscription import (
    AssignPartitions,
    SubscribePattern,
    SubscribeTopics,
    Subscription,
    parse_subscription,
)
from spark_log.errors import SparkLogError
from spark_log.jobs.arguments import Parser, add_config, positive

EXAMPLES = """\
  python jobs/transform.py --subscribe orders --to-topic orders-copy --group-id copies
  python jobs/transform.py --subscribe orders --function billing:bill --group-id bills
  python jobs/transform.py --subscribe-pattern '^orders-' --function billing:bill_table --arrow --group-id bills
  python jobs/transform.py --config bills.toml --consumer-timeout-ms 5000

where billing.py, in this folder or installed, has

  def bill(records, producer):                    # kafka-python's ConsumerRecords, in order within a partition
      for record in records:
          producer.send("bills", key=record.key, value=b"paid " + record.value)"""

_CONSUMER = ("auto_offset_reset", "max_poll_records", "consumer_timeout_ms", "session_timeout_ms")


@dataclass(frozen=True)
class TransformArguments:
    cluster: str = field(repr=False)
    """May hold a password."""
    topics: SubscribeTopics | SubscribePattern
    function: str | None
    """`module:function`; None: copy to `to_topic`."""
    arrow: bool
    to_topic: str | None
    group_id: str
    transactional_id: str | None
    """None: one of this run alone."""
    consumer: Mapping[str, int | str]
    """Settings of the consumer, by their names."""
    producer: Mapping[str, int]
    """Settings of the producer, by their names."""
    retries: int | None
    json: bool


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> TransformArguments:
    """SystemExit(2) with a message on stderr for wrong usage."""
    parser = _parser()
    given = parser.read(arguments)
    if given.arrow and given.function is None:
        parser.error("--arrow: only with --function")
    which = {"subscribe": given.subscribe, "subscribePattern": given.subscribe_pattern}
    try:
        topics = parse_subscription(OptionText({name: text for name, text in which.items() if text is not None}))
        if given.to_topic is not None:
            validate_user_topic(given.to_topic, "write to", "--to-topic")
            if _reads(topics, given.to_topic):
                parser.error(f"--to-topic {given.to_topic!r}: is subscribed too: the job would read its own output")
    except SparkLogError as error:
        parser.error(str(error))
    assert not isinstance(topics, AssignPartitions), "not among the arguments"
    consumer = {name: getattr(given, name) for name in _CONSUMER}
    if given.session_timeout_ms is not None:
        consumer["heartbeat_interval_ms"] = min(given.session_timeout_ms // 3, ConsumerSettings.heartbeat_interval_ms)
    return TransformArguments(
        parser.cluster(given, environ),
        topics,
        given.function,
        given.arrow,
        given.to_topic,
        given.group_id,
        given.transactional_id,
        {name: value for name, value in consumer.items() if value is not None},
        {} if given.transaction_timeout_ms is None else {"transaction_timeout_ms": given.transaction_timeout_ms},
        given.retries,
        given.json,
    )


def _reads(topics: Subscription, name: str) -> bool:
    if isinstance(topics, SubscribePattern):
        return bool(topics.select([name]))
    return isinstance(topics, SubscribeTopics) and name in topics.topics


def _parser() -> Parser:
    description = (
        "A function over the records of topics, exactly once: what it sends and the offsets behind the records are"
        " committed together. Started again, it goes on where it was; started several times, the runs share the"
        " partitions. SIGTERM finishes the transaction under way."
    )
    parser = Parser("jobs/transform.py", description, EXAMPLES, started_by="python")
    what = parser.add_argument_group("what is done")
    source = what.add_mutually_exclusive_group(required=True)
    source.add_argument("--subscribe", metavar="TOPIC[,TOPIC]")
    source.add_argument("--subscribe-pattern", metavar="REGEX", help="also topics that come into being later")
    how = what.add_mutually_exclusive_group(required=True)
    how.add_argument("--function", metavar="MODULE:FUNCTION", help="called with (records, producer); it sends")
    how.add_argument("--to-topic", metavar="TOPIC", help="copy key, value, timestamp and headers to this topic")
    what.add_argument("--arrow", action="store_true", help="call the function with (Arrow table, producer)")
    run = parser.add_argument_group("cluster and run")
    add_config(run)
    run.add_argument("--cluster", metavar="ADDRESS", help="folder or postgresql+psycopg:// URL [env SPARK_LOG_CLUSTER]")
    run.add_argument("--group-id", metavar="GROUP", required=True, help="keeps the offsets, shares the partitions")
    run.add_argument(
        "--transactional-id",
        metavar="ID",
        help="of this process alone: another one with it fences this one [the group's id and a random part]",
    )
    run.add_argument(
        "--auto-offset-reset",
        choices=("earliest", "latest", "none"),
        default="earliest",
        help="where the group begins [earliest]",
    )
    run.add_argument("--max-poll-records", metavar="N", type=positive, help="records of a transaction at most [500]")
    run.add_argument("--transaction-timeout-ms", metavar="N", type=positive, help="when it is aborted [60000]")
    run.add_argument(
        "--consumer-timeout-ms", metavar="N", type=positive, help="end after so long without a record [never]"
    )
    run.add_argument(
        "--session-timeout-ms",
        metavar="N",
        type=positive,
        help="after so long others take over from a process that was killed [45000]",
    )
    run.add_argument("--retries", metavar="N", type=positive, help="of a transaction that could be tried again [5]")
    run.add_argument("--json", action="store_true", help="the summary as a JSON line")
    return parser
