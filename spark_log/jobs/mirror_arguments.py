"""Arguments of `jobs/mirror.py`. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_log.datasource.option_text import OptionText
from spark_log.datasource.subscription import AssignPartitions, parse_subscription
from spark_log.errors import SparkLogError
from spark_log.jobs.arguments import AvailableNow, Batch, Every, Parser, positive
from spark_log.streams.mirror import MirrorSettings

EXAMPLES = """\
  spark-submit jobs/mirror.py --cluster /data/log --to-cluster /backup/log --subscribe flights,planes --create-topics
  spark-submit jobs/mirror.py --cluster /data/log --to-cluster postgresql+psycopg://me@db/log \\
      --subscribe-pattern '^eu-' --create-topics --prefix mirror. --groups \\
      --trigger '10 seconds' --max-offsets-per-trigger 1000000"""


@dataclass(frozen=True)
class MirrorArguments:
    cluster: str = field(repr=False)
    to_cluster: str = field(repr=False)
    """Addresses; they may hold passwords."""
    settings: MirrorSettings
    run: AvailableNow | Every
    groups: bool
    json: bool


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> MirrorArguments:
    """SystemExit(2) with a message on stderr for wrong usage."""
    parser = _parser()
    given = parser.parse_args(arguments)
    cluster = parser.cluster(given, environ)
    if given.replication_factor is not None and not given.create_topics:
        parser.error("--replication-factor: only with --create-topics")
    run = AvailableNow() if given.trigger is None else parser.trigger(given.trigger)
    assert not isinstance(run, Batch), "no trigger is one"
    which = {"subscribe": given.subscribe, "subscribePattern": given.subscribe_pattern}
    try:
        topics = parse_subscription(OptionText({name: text for name, text in which.items() if text is not None}))
    except SparkLogError as error:
        parser.error(str(error))
    assert not isinstance(topics, AssignPartitions), "not among the arguments"
    settings = MirrorSettings(
        topics,
        given.prefix,
        given.create_topics,
        given.replication_factor,
        given.max_offsets_per_trigger or MirrorSettings.offsets_per_step_max,
        given.allow_data_loss,
    )
    return MirrorArguments(cluster, given.to_cluster, settings, run, given.groups, given.json)


def _parser() -> Parser:
    description = (
        "Keep topics of one cluster in another one: the same records at the same offsets. The target's own log is the"
        " progress: started again, it goes on where the target ends."
    )
    parser = Parser("jobs/mirror.py", description, EXAMPLES)
    where = parser.add_argument_group("from where to where")
    where.add_argument(
        "--cluster", metavar="ADDRESS", help="the source: folder or postgresql+psycopg:// URL [env SPARK_LOG_CLUSTER]"
    )
    where.add_argument("--to-cluster", metavar="ADDRESS", required=True, help="the target")
    topics = parser.add_argument_group("which topics")
    one = topics.add_mutually_exclusive_group(required=True)
    one.add_argument("--subscribe", metavar="TOPIC[,TOPIC]")
    one.add_argument("--subscribe-pattern", metavar="REGEX", help="also topics that come into being later")
    topics.add_argument("--prefix", default="", metavar="TEXT", help="in front of their names in the target")
    topics.add_argument("--create-topics", action="store_true", help="make what is missing, with the source's configs")
    topics.add_argument("--replication-factor", metavar="N", type=positive, help="of topics made [the source's]")
    topics.add_argument("--groups", action="store_true", help="move the committed offsets of groups along")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--trigger",
        metavar="WHEN",
        help="available-now (what is there, then end; the default), or an interval as '10 seconds' (go on until"
        " SIGTERM)",
    )
    how.add_argument(
        "--max-offsets-per-trigger",
        metavar="N",
        type=positive,
        help=f"rate limit: offsets copied in one transaction [{MirrorSettings.offsets_per_step_max:,}]",
    )
    how.add_argument("--allow-data-loss", action="store_true", help="go on behind what the source lost before")
    how.add_argument("--json", action="store_true", help="progress and summary as JSON lines")
    return parser
