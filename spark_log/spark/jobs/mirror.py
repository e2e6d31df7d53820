"""`jobs/mirror.py` copies topics of one cluster to another cluster."""

from dataclasses import dataclass
from typing import Annotated

import typer

from spark_log.errors import SparkLogError
from spark_log.spark.datasource.options.option_text import OptionText
from spark_log.spark.datasource.options.topic_choice import (
    AssignPartitions,
    SubscribePattern,
    SubscribeTopics,
    parse_subscription,
)
from spark_log.spark.jobs.options.arguments import ClusterAddress, usage_error
from spark_log.spark.jobs.options.command import Group, Job, OneOf
from spark_log.spark.jobs.options.job_arguments import MirrorArguments
from spark_log.spark.jobs.options.run_options import Json, parse_trigger

EXAMPLES = """\
JOBS=$(spark-log path jobs)
spark-submit $JOBS/mirror.py --cluster /data/log \\
    --to-cluster /backup/log --subscribe flights,planes --create-topics
spark-submit $JOBS/mirror.py --cluster /data/log \\
    --to-cluster postgresql+psycopg://me@db/log \\
    --subscribe-pattern '^eu-' --create-topics --prefix mirror. --groups \\
    --trigger '10 seconds' --max-offsets-per-trigger 1000000"""


@dataclass(frozen=True)
class _ClusterOptions:
    cluster: ClusterAddress
    to_cluster: Annotated[
        str, typer.Option(metavar="FOLDER-OR-URL", help="The target; --cluster is the source.", show_default=False)
    ]


@dataclass(frozen=True)
class TopicChoice:
    """The options --subscribe and --subscribe-pattern."""

    subscribe: Annotated[str | None, typer.Option(metavar="TOPIC[,TOPIC]", help="These topics.")] = None
    subscribe_pattern: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Topics whose names match, also topics created later.")
    ] = None

    def parsed(self) -> SubscribeTopics | SubscribePattern:
        """Return the chosen topics. Raises a usage error if they are invalid."""
        given = {"subscribe": self.subscribe, "subscribePattern": self.subscribe_pattern}
        try:
            topics = parse_subscription(OptionText({name: text for name, text in given.items() if text is not None}))
        except SparkLogError as error:
            raise typer.BadParameter(str(error)) from None
        assert not isinstance(topics, AssignPartitions), "not among the options"
        return topics


TOPICS = Group(TopicChoice, "Which topics (one of)")
ONE_CHOICE = OneOf(("subscribe", "subscribe_pattern"), required=True)


@dataclass(frozen=True)
class _CopyOptions:
    prefix: Annotated[
        str, typer.Option(metavar="TEXT", help="Comes before the names in the target.", show_default=False)
    ] = ""
    create_topics: Annotated[
        bool, typer.Option("--create-topics", help="Create missing topics, with the configs of the source.")
    ] = False
    replication_factor: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Of created topics. [default: that of the source]")
    ] = None
    groups: Annotated[bool, typer.Option("--groups", help="Copy the committed offsets of groups too.")] = False
    trigger: Annotated[
        str,
        typer.Option(
            metavar="WHEN",
            help="available-now (copy what has arrived, then end), or an interval such as '10 seconds' (run until"
            " SIGTERM).",
        ),
    ] = "available-now"
    max_offsets_per_trigger: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Rate limit: offsets copied in one transaction. [default: 5,000,000]"),
    ] = None
    allow_data_loss: Annotated[
        bool, typer.Option("--allow-data-loss", help="Continue after records that the source has lost.")
    ] = False
    json: Json = False


def _build(clusters: _ClusterOptions, topics: TopicChoice, copy_options: _CopyOptions) -> MirrorArguments:
    from spark_log.spark.mirror.mirror_topics import MirrorSettings

    if copy_options.replication_factor is not None and not copy_options.create_topics:
        raise usage_error("--replication-factor", "only with --create-topics")
    settings = MirrorSettings(
        topics.parsed(),
        copy_options.prefix,
        copy_options.create_topics,
        copy_options.replication_factor,
        copy_options.max_offsets_per_trigger or MirrorSettings.offsets_per_step_max,
        copy_options.allow_data_loss,
    )
    run = parse_trigger(copy_options.trigger)
    return MirrorArguments(clusters.cluster, clusters.to_cluster, settings, run, copy_options.groups, copy_options.json)


JOB = Job(
    "mirror",
    "Copy topics of one cluster to another one: the same records at the same offsets. The target's log is the progress:"
    " started again, the job continues where the target ends.",
    EXAMPLES,
    (Group(_ClusterOptions, "Clusters"), TOPICS, Group(_CopyOptions, "How to copy")),
    _build,
    (ONE_CHOICE,),
)
main = JOB.main("spark_log.spark.jobs.queries.mirror_steps:run")
