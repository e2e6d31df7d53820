"""The rules of the jobs' arguments, without Spark."""

import shlex

import pytest

from spark_log.spark.jobs import consume as consume_job
from spark_log.spark.jobs import produce as produce_job
from spark_log.spark.jobs.options.job_arguments import (
    Console,
    ConsumeArguments,
    Files,
    NewTopic,
    OtherTopic,
    ProduceArguments,
)
from spark_log.spark.jobs.options.run_options import AvailableNow, Batch, Every
from tests.jobs.conftest import Refused


def produce(line: str) -> ProduceArguments:
    return produce_job.JOB.parse(shlex.split(line))


def consume(line: str) -> ConsumeArguments:
    return consume_job.JOB.parse(shlex.split(line))


def test_produce_a_file() -> None:
    given = produce("t a.csv.gz --key k --header a=b=c --header a=d --create-topic --partitions 3 --config x.y=1")
    assert (given.topic, given.paths, given.format) == ("t", ("a.csv.gz",), "csv")
    assert given.shared.run == Batch()
    assert given.shared.cluster == "/data/log"
    assert given.columns.key == "k"
    assert given.columns.value is None
    assert given.columns.headers == (("a", "b=c"), ("a", "d")), "a header may come twice, and only the first = counts"
    assert given.new_topic == NewTopic(3, 1, {"x.y": "1"})


def test_examples_with_timestamps_disable_retention() -> None:
    lines = [shlex.split(line, comments=True) for line in produce_job.EXAMPLES.replace("\\\n", " ").splitlines()]
    examples = [produce_job.JOB.parse(words[2:]) for words in lines if words[:1] == ["spark-submit"]]
    stamped = [each for each in examples if each.columns.timestamp is not None]
    assert stamped and all(each.new_topic and each.new_topic.configs["retention.ms"] == "-1" for each in stamped)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.csv", "csv"),
        ("A.JSON", "json"),
        ("logs/*.jsonl.bz2", "json"),
        ("s3a://b/x.parquet?v=1", "parquet"),
        ("a.csv.snappy", "csv"),
    ],
)
def test_format_follows_from_the_file_name(path: str, expected: str) -> None:
    assert produce(f"t '{path}'").format == expected


def test_triggers() -> None:
    file = "t in --format json --schema 'a INT' --stream --checkpoint c"
    assert produce(file).shared.run == AvailableNow()
    assert produce(f"{file} --trigger '10 seconds'").shared.run == Every(10_000)
    assert produce(f"{file} --trigger 5s").shared.run == Every(5_000)
    assert produce(f"{file} --trigger 500ms").shared.run == Every(500)
    assert produce("t --format rate --stream --checkpoint c").shared.run == Every(1_000)
    limited = produce(f"{file} --max-files-per-trigger 2 --option multiLine=true")
    assert limited.options == {"multiLine": "true", "maxFilesPerTrigger": "2"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "TOPIC"),
        ("t", "--format: needed"),
        ("t a.bin", "--format: needed"),
        ("t --format csv", "PATH: at least one"),
        ("t a.csv --format xml", "'xml' is not one of"),
        ("t --format rate", "only with --stream"),
        ("t a.csv --format rate --stream --checkpoint c", "reads no files"),
        ("t --format rate --stream --checkpoint c --trigger available-now", "never ends"),
        ("t a.csv --trigger 5s", "--trigger: only with --stream"),
        ("t a.csv --checkpoint c", "--checkpoint: only with --stream"),
        ("t a.parquet --stream", "--checkpoint: needed"),
        ("t a.parquet --stream --checkpoint c --trigger often", "expected available-now or an interval"),
        ("t a.csv --stream --checkpoint c", "--schema: a stream"),
        ("t a.parquet b.parquet --stream --checkpoint c", "one folder"),
        ("t a.csv --partitions 3", "--partitions: only with --create-topic"),
        ("t a.csv --create-topic --partitions 0", "--partitions': Input should be greater than or equal to 1"),
        ("t a.csv --create-topic --config retention.ms", "expected name=value"),
        ("t a.csv --create-topic --config a=1 --config a=2", "'a' is given twice"),
        ("t a.csv --header nothing", "expected name=value, got 'nothing'"),
        ("t a.csv --max-files-per-trigger 1", "only with --stream"),
        ("t a.csv --part 3", "No such option: --part"),
    ],
)
def test_wrong_usage_of_produce_names_the_argument(line: str, said: str, refused: Refused) -> None:
    assert said in refused(produce, line)


def test_missing_cluster_names_the_variable_and_init(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOG_CLUSTER")
    first, second = refused(produce, "t a.csv").splitlines()
    assert first.startswith(
        "produce: Missing option '--cluster' (env var: 'SPARK_LOG_CLUSTER or SPARK_LOG_CLUSTER_FILE'). "
    )
    assert "spark-log init" in first
    assert second == "All arguments: spark-submit $(spark-log path jobs)/produce.py --help"
    assert produce("t a.csv --cluster x").shared.cluster == "x"


def test_an_interval_of_days_reaches_spark_as_seconds() -> None:
    assert str(Every(30 * 86_400_000)) == "2592000 seconds"
    assert str(Every(1_500)) == "1500 milliseconds"


def test_consume_shows_records_on_the_console_by_default() -> None:
    given = consume("--subscribe t")
    assert given.sink == Console(20)
    assert given.options == {"subscribe": "t"}
    assert given.shared.run == Batch()


def test_stream_starts_at_earliest_by_default() -> None:
    assert consume("--subscribe t --stream --checkpoint c").options["startingOffsets"] == "earliest"
    assert consume("--subscribe t --stream --checkpoint c --starting-offsets latest").options == {
        "subscribe": "t",
        "startingOffsets": "latest",
    }
    by_time = consume("--subscribe t --stream --checkpoint c --starting-timestamp 2013-01-01T00:00:00Z").options
    assert by_time == {"subscribe": "t", "startingTimestamp": "1356998400000"}


def test_sinks() -> None:
    assert consume("--subscribe t --parquet p").sink == Files("parquet", "p", "errorifexists")
    assert consume("--subscribe t --parquet p --stream --checkpoint c").sink == Files("parquet", "p", "append")
    assert consume("--subscribe t --delta d --mode overwrite").sink == Files("delta", "d", "overwrite")
    copy = consume("--subscribe t --to-topic u")
    assert copy.sink == OtherTopic("u", "/data/log", False)
    assert copy.options["includeHeaders"] == "true", "a copy keeps the headers"
    elsewhere = consume("--subscribe t --to-topic u --to-cluster /other --keep-partitions").sink
    assert elsewhere == OtherTopic("u", "/other", True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "--subscribe or --subscribe-pattern or --assign: one is needed"),
        ("--subscribe t --assign x", "not allowed with"),
        ("--subscribe t --parquet p --delta d", "not allowed with"),
        ("--subscribe t --limit 3 --parquet d", "not allowed with"),
        ("--subscribe t --mode append", "--mode: only with"),
        ("--subscribe t --parquet p --stream --checkpoint c --mode overwrite", "a stream appends"),
        ("--subscribe t --keep-partitions", "only with --to-topic"),
        ("--subscribe t --to-topic u --value-schema 'a INT'", "keeps the values"),
        ("--subscribe t --max-offsets-per-trigger 5", "only with --stream"),
        ("--subscribe t --starting-timestamp soon", "expected milliseconds or 2026"),
        ("--subscribe t --starting-offsets 7", "Expected e.g."),
        ("--subscribe t --starting-offsets latest", "can't be latest for batch"),
        ("--subscribe t --ending-offsets earliest", "can't be earliest for batch"),
        ("--subscribe t --stream --checkpoint c --ending-offsets latest", "not valid in streaming"),
        ("--subscribe 'a b'", "not a legal topic name"),
        ("--assign '{\"t\":0}'", "Expected e.g."),
        ("--subscribe-pattern '('", "pattern"),
    ],
)
def test_wrong_usage_of_consume_names_the_argument(line: str, said: str, refused: Refused) -> None:
    assert said.lower() in refused(consume, line).lower()
