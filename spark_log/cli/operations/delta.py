"""The command `spark-log delta install`, which installs Delta for Spark. Users run it once after `pip install`."""

from pathlib import Path
from typing import Annotated

import typer

from spark_log.cli.output import count_of, note, say

app = typer.Typer(no_args_is_help=True, help='Install what Spark needs for format("delta").')


@app.command()
def install(
    jars_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where to put the JARs. [default: the folder `jars` of SPARK_HOME, or of the installed pyspark]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Download the JARs of Delta and of Spark's Avro functions, verify them, and print the Spark settings for Delta.

    Run it once on every machine of the Spark cluster. Existing JARs are not downloaded again. The source is Maven
    Central, or the mirror whose URL is in DEFAULT_ARTIFACT_REPOSITORY. Only the settings are printed on stdout.

    Without this command, add `spark.jars.packages io.delta:delta-spark_4.2_2.13:4.4.0` to those settings. Then each
    Spark application downloads Delta itself.

    **Examples**

    - `spark-log delta install`
    - `spark-log delta install >> $SPARK_CONF_DIR/spark-defaults.conf`
    - `spark-log delta install --jars-dir /opt/delta-jars`
    """
    from spark_log.spark import delta_jars

    own = delta_jars.spark_jars_folder()
    folder = own if jars_dir is None else jars_dir.absolute()
    if delta_jars.missing_in(folder):
        note(f"Downloading {count_of(len(delta_jars.JARS), 'JAR')} to {folder}")
    installed = delta_jars.install(folder, note)
    if installed:
        note(f"Installed {count_of(len(installed), 'JAR')}, SHA-256 verified.")
    else:
        note(f"{folder} has all of them already.")
    note("Settings for spark-defaults.conf, or .config(name, value) of a session:")
    settings = dict(delta_jars.DELTA_SETTINGS)
    if folder.resolve() != own.resolve():
        settings["spark.jars"] = ",".join(str(folder / name) for name in delta_jars.JARS)
    width = max(map(len, settings))
    for name, value in settings.items():
        say(f"{name:<{width}}  {value}")
