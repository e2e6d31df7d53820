"""The commands `spark-log table …`, which show, verify and rebuild Delta, Iceberg and current-state tables."""

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from spark_log.cli.output import count_of, note, print_json, print_table, say
from spark_log.cli.shared_options import Cluster_, Json, TopicName, open_cluster
from spark_log.cli.topics.topic_output import table_state

app = typer.Typer(no_args_is_help=True, help="Show, verify and rebuild the tables of a topic.")


class Target(StrEnum):
    """The formats of tables."""

    delta = "delta"
    iceberg = "iceberg"
    current = "current"


class Rebuilt(StrEnum):
    """The formats of tables that can be rebuilt."""

    iceberg = "iceberg"
    current = "current"


@app.command()
def describe(name: TopicName, cluster: Cluster_, as_json: Json = False) -> None:
    """Show the tables of a topic: their locations and versions, how many files they list, and what they lack.

    **Examples**

    - `spark-log table describe orders`
    - `spark-log table describe orders --json`
    """
    from spark_log.cluster.topics import find_topic
    from spark_log.tables.lag_measurement import describe_tables
    from spark_log.tables.publication import open_as_is, tables_of

    with open_cluster(cluster) as opened:
        log_dirs = opened.log_dirs()
        topic = opened.store.read(lambda connection: find_topic(connection, name))
        here = opened.of(topic)
        now_ms = here.store.now().wall_ms
        described = here.store.read(lambda c: describe_tables(c, [topic], log_dirs, now_ms))[topic.topic_id]
        tables = {(int(table.info.log_dir_id), table.target): table for table in tables_of(here, topic)}
        rows = []
        for info in described:
            table = tables.get((info.log_dir_id, info.target))
            there = None if table is None else open_as_is(table)
            sizes = {} if table is None else table.log_dir.list_files(table.metadata_folder)
            files = {} if there is None else {"files": len(there.listed())}
            rows.append({**asdict(info), **files, "metadata_files": len(sizes), "metadata_bytes": sum(sizes.values())})
    if as_json:
        print_json(rows)
        return
    print_table(
        None,
        ["table", "log dir", "version", "files", "metadata bytes", "state"],
        [
            [
                row["target"],
                row["log_dir_id"],
                "none yet" if row["version"] is None else row["version"],
                row.get("files", ""),
                row["metadata_bytes"],
                table_state(row),
            ]
            for row in rows
        ],
    )
    for row in rows:
        say(f"{row['target']}: {row['location']}")
    if "iceberg" in topic.config.table_formats and all(info.target != "iceberg" for info in described):
        say("iceberg: none in the catalog, since no online log dir has a replica of every partition.")


@app.command()
def verify(
    name: TopicName,
    cluster: Cluster_,
    target: Annotated[Target | None, typer.Option("--target", help="Only tables of this format.")] = None,
    as_json: Json = False,
) -> None:
    """Compare the records in the tables of a topic with the log, offset by offset. If they differ, the exit code is 1.

    First, each table is brought up to date. Then it is compared up to the offsets that it shows. The command reads all
    records of the topic, once from the log and once from each table.

    **Examples**

    - `spark-log table verify orders`
    - `spark-log table verify orders --target current`
    """
    from spark_log.cluster.topics import find_topic
    from spark_log.tables.verification import verify as verified

    rows = []
    with open_cluster(cluster) as opened:
        topic = opened.store.read(lambda connection: find_topic(connection, name))
        for done in verified(opened, topic, target):
            rows.append(asdict(done))
            if not as_json:
                state = "equal to the log" if done.difference is None else f"NOT EQUAL: {done.difference}"
                say(f"{done.target} table {done.location}: {count_of(done.records, 'record')}, {state}")
    if as_json:
        print_json(rows)
    if not rows:
        note(f"Topic {name} has no {'table' if target is None else f'{target} table'}.")
    if not rows or any(row["difference"] is not None for row in rows):
        raise typer.Exit(1)


@app.command()
def rebuild(
    name: TopicName,
    cluster: Cluster_,
    target: Annotated[Rebuilt, typer.Option("--target", help="The format of the tables.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete the metadata of a topic's Iceberg or current-state tables, and write it again from the log. No record is
    copied or deleted. Running queries on the tables may fail, and their earlier versions are lost.

    **Example**

    - `spark-log table rebuild orders --target current`
    """
    from spark_log.cluster.topics import find_topic
    from spark_log.tables.verification import rebuild as rebuilt

    with open_cluster(cluster) as opened:
        topic = opened.store.read(lambda connection: find_topic(connection, name))
        if not yes:
            typer.confirm(f"Delete the {target} tables of {name}, and write them anew?", abort=True, err=True)
        count = rebuilt(opened, topic, target)
    if not count:
        note(f"Topic {name} has no {target} table: see `spark-log topic configs table.formats table.current`.")
        raise typer.Exit(1)
    say(f"Rebuilt {count_of(count, f'{target} table')} of topic {name}.")
