"""The command `spark-log topic erase`, which erases every record of given keys."""

from typing import Annotated

import typer

from spark_log.cli.output import count_of, note, print_result
from spark_log.cli.shared_options import Cluster_, Json, TopicName, open_cluster, parse_before

_PURGE = """\
The files that contain these records are deleted at once in every log dir, also older copies from before merges and
compactions. Spark jobs, consumers and Delta streams that read one of them fail, and older versions of the Delta table
cannot be read any more."""


def erase(
    name: TopicName,
    cluster: Cluster_,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key", "-k", metavar="KEY", help="A key; repeatable. Other users see it in `ps`: prefer --keys-file."
        ),
    ] = None,
    keys_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A file with one key on each line; - is stdin.", show_default=False),
    ] = None,
    encoded: Annotated[bool, typer.Option("--base64", help="The keys are given as base64 of their bytes.")] = False,
    end: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[PARTITION=]OFFSET",
            help="Erase only records before this offset, of one partition or of all. Repeatable.",
            show_default=False,
        ),
    ] = None,
    purge: Annotated[
        bool, typer.Option("--purge", help="Delete the old files at once, instead of file.delete.delay.ms later.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Erase every record of the given keys, including headers and tombstones. All other records keep their offsets.

    Records that are appended while the command runs are not erased: first stop the programs that write them. For topics
    of many gigabytes use `spark-submit "$(spark-log path jobs)/erase.py"`.

    **Examples**

    - `spark-log topic erase users --keys-file forget.txt --purge`
    - `spark-log topic erase users --key N14228`
    """
    from spark_log.cluster.topics import find_topic
    from spark_log.maintenance.erase.erase import erase as erase_records
    from spark_log.maintenance.erase.erase_keys import STDIN, keys_of

    if not key and keys_file is None:
        raise typer.BadParameter("expected --key or --keys-file")
    if keys_file == STDIN and not yes:
        raise typer.BadParameter(
            "keys on stdin need --yes: there is no input left for the confirmation", param_hint="--keys-file"
        )
    keys = keys_of(key or (), keys_file, encoded=encoded)
    with open_cluster(cluster) as opened:
        topic = opened.store.read(lambda connection: find_topic(connection, name))
        given = parse_before(end or (), topic.partition_count, "--end")
        ends = {partition: offset for partition, offset in given.items() if offset != -1}
        if not yes:
            if purge:
                for line in _PURGE.splitlines():
                    note(line)
            typer.confirm(
                f"Erase all records of {count_of(len(keys.unique()), 'key')} from {name}?", abort=True, err=True
            )
        erased = erase_records(opened, name, keys, ends=ends, purge=purge)
    print_result(as_json, erased.as_dict(), *erased.lines())
