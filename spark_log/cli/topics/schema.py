"""The commands `spark-log schema …`, which manage the schemas of typed topics."""

import json
from typing import Annotated

import typer

from spark_log.cli.output import print_json, print_table, say
from spark_log.cli.shared_options import Cluster_, Json, TopicName, open_cluster
from spark_log.cli.topics.schema_argument import parse_schema
from spark_log.log.columns.key_and_value import KEY, VALUE
from spark_log.text import printable, printable_json

app = typer.Typer(
    no_args_is_help=True,
    help="Show and change the schemas of typed topics (value.format and value.schema; key.format and key.schema).",
)
_Key = Annotated[bool, typer.Option("--key", help="The schema of the keys, not that of the values.")]


@app.command("show")
def show(name: TopicName, cluster: Cluster_, key: _Key = False, as_json: Json = False) -> None:
    """Show the typed columns of a topic's values, or keys: the columns of the schema, and those of fields that earlier
    schemas had.
    """
    from spark_log.cluster.topics import find_topic
    from spark_log.log.columns.types import to_json, type_ddl

    with open_cluster(cluster) as opened:
        topic = opened.store.read(lambda connection: find_topic(connection, name))
    part, versions = KEY if key else VALUE, topic.columns
    columns = None if versions is None else versions.of(part.source)
    if as_json:
        print_json(
            None
            if versions is None or columns is None
            else {
                "topic": name, "version": versions.version, "format": columns.format, "framing": columns.framing,
                "schema": columns.schema, "columns": json.loads(to_json(columns.fields)),
                "renamed": columns.renamed, "replaced": columns.replaced,
            }
        )  # fmt: skip
    elif versions is not None and columns is None:
        say(f"Only the {'value' if key else 'key'}s of {name} have typed columns{': see --key' * (not key)}.")
    elif versions is None or columns is None:
        say(
            f"The {part.source}s of {name} have no typed columns: set {part.source}.format and {part.source}.schema, or"
            f" `spark-log schema set{' --key' * key}`."
        )
    else:
        title = f"{part.source}s of {name}: {columns.format}, version {versions.version} of the columns"
        notes = {column: f"field {field}" for field, column in columns.renamed.items()}
        notes |= dict.fromkeys(columns.replaced, "of an earlier schema")
        rows = [
            (f"{part.record}.{each.name}", type_ddl(each.type), notes.get(each.name, "")) for each in columns.fields
        ]
        print_table(title, ("column", "type", ""), rows)


@app.command("set")
def set_(
    name: TopicName,
    schema: Annotated[
        str,
        typer.Argument(
            metavar="SCHEMA",
            help="The schema; @FILE that has it; or @FILE#MESSAGE of a Protobuf descriptor set.",
            show_default=False,
        ),
    ],
    cluster: Cluster_,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="value.format or key.format. [default: the schema's, the topic's, or json]",
        ),
    ] = None,
    key: _Key = False,
    reset: Annotated[
        bool, typer.Option("--reset", help="Give a field whose type has changed a new column: price__v2.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; show what would change.")] = False,
    as_json: Json = False,
) -> None:
    """Set the schema of a topic's values, or keys. New files get the columns of its fields; existing files are not
    rewritten.

    A new field becomes a new column. The column of a field that the schema no longer has stays. Another type for a
    field is refused. With --reset, the column stays with its earlier type, and the field gets a new column, such as
    `price__v2` for `price`. A value that fits only the earlier type is still no bad record.

    **Examples**

    - `spark-log schema set orders 'item STRING, price DOUBLE, at TIMESTAMP'`
    - `spark-log schema set orders @v2.ddl --dry-run`
    - `spark-log schema set orders --key 'customer BIGINT'`
    - `spark-log schema set orders 'item STRING, price STRING' --reset`
    - `spark-log schema set orders @shop.desc#shop.Order` (protoc --include_imports --descriptor_set_out=shop.desc …)
    - `spark-log maintenance columns --topic orders` (afterwards the existing files have the columns too)
    """
    from spark_log.cluster.topics import find_topic
    from spark_log.log.columns.field_paths import column_paths
    from spark_log.replication.controller.topic_operations import alter_configs

    text, implied = parse_schema(schema, "SCHEMA")
    with open_cluster(cluster) as opened:
        topic = opened.store.read(lambda connection: find_topic(connection, name))
        source = (KEY if key else VALUE).source
        present = topic.config.part(source).format
        chosen = format_ or implied or (present if present != "bytes" else "json")
        changes = {f"{source}.format": chosen, f"{source}.schema": text}
        after = alter_configs(opened, name, changes, validate_only=dry_run, reset=reset).columns
    assert after is not None
    definition, earlier = after.of(source), topic.all_columns and topic.all_columns.of(source)
    assert definition is not None
    before = [] if earlier is None else column_paths(earlier.fields)
    added = [path for path in column_paths(definition.fields) if path not in before]
    renamed = {field: column for field, column in definition.renamed.items() if column in added}
    if as_json:
        print_json({"topic": name, "version": after.version, "added": added, "reset": renamed, "dry_run": dry_run})
        return
    say(f"New columns: {', '.join(added)}." if added else "No new columns.")
    for field, column in renamed.items():
        say(f"Field {field} is column {column} from now on; the column of its earlier type stays.")
    if not dry_run:
        say(
            f"New files of {name} get version {after.version} of the columns; for the files that are there, run"
            f" spark-log maintenance columns --topic {name}"
        )


@app.command("infer")
def infer(
    name: TopicName,
    cluster: Cluster_,
    sample: Annotated[
        int, typer.Option("--sample", min=1, metavar="N", help="The number of newest records to read.")
    ] = 10_000,
    key: _Key = False,
    as_json: Json = False,
) -> None:
    """Print a DDL schema that fits the newest records of a topic with JSON values, or JSON keys. Avro and Protobuf
    records do not contain their schema.

    **Example:** `spark-log schema infer orders > orders.ddl && spark-log schema set orders @orders.ddl`
    """
    from spark_log.errors import InvalidConfigurationError
    from spark_log.log.columns.inference import infer_json
    from spark_log.log.columns.types import to_ddl, to_json
    from spark_log.log.reader import LogReader
    from spark_log.log.samples import newest

    with open_cluster(cluster) as opened:
        log = LogReader(opened)
        try:
            topic = log.find_topic(name)
            part = topic.config.part((KEY if key else VALUE).source)
            if part.format in ("avro", "protobuf"):
                raise InvalidConfigurationError(
                    f"topic {name!r}: {part.format} {part.source}s do not contain their schema, so none can be"
                    " inferred; it has to be given"
                )
            fields = infer_json(newest(log, topic, sample, part.source))
        finally:
            log.close()
    if as_json:
        typer.echo(printable_json(to_json(fields)))
    else:
        typer.echo(printable(to_ddl(fields), keep="\n"))
