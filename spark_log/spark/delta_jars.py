"""Installs Delta's JARs and Spark's Avro JAR in a `jars` folder, and defines the settings that they need.

Spark's resolver (Ivy) downloads the JARs as it does for `spark.jars.packages`: from Maven Central, or from the mirror
that DEFAULT_ARTIFACT_REPOSITORY, or spark.jars.ivySettings in spark-defaults.conf, names.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_log.errors import DeltaNotInstalledError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK = "4.2"
"""The Spark version for which Delta's JARs are compiled."""
PACKAGE = f"io.delta:delta-spark_{SPARK}_2.13:4.4.0"
"""Delta's package for `spark.jars.packages`."""
AVRO_PACKAGE = "org.apache.spark:spark-avro_2.13:4.1.1"
"""The newest version that Maven Central has. Its from_avro and to_avro work with Spark 4.2."""
DELTA_SETTINGS: dict[str, Any] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""Spark settings for `format("delta")` and SQL on Delta tables: `SparkSession.builder.config(map=DELTA_SETTINGS)`.

They need Delta's JARs (`spark-log delta install`). Without the JARs every query fails.
"""
JARS = {
    "io.delta_delta-kernel-api-4.4.0.jar": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    "io.delta_delta-kernel-defaults-4.4.0.jar": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    "io.delta_delta-kernel-unitycatalog-4.4.0.jar": "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
    "io.delta_delta-spark_4.2_2.13-4.4.0.jar": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    "io.delta_delta-storage-4.4.0.jar": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "io.unitycatalog_unitycatalog-client-0.6.0.jar": "48257499a86b801a3e2372cec55ac226ca1c1c7eabe5c118e7302f29a1fdbc19",
    "io.unitycatalog_unitycatalog-hadoop-0.6.0.jar": "c47b63c961c87102b9e1d63809a0915ba4c86b7652f57c8d39ca3a05b441a150",
    "org.apache.spark_spark-avro_2.13-4.1.1.jar": "6a19d90bc3b6e88d8db0fa36a19273aa10fea2dbd7a62bb60e4cedd73051b32d",
}
"""SHA-256 by file name. Ivy names a file by group, artifact and version. Spark already has all other dependencies, some
of them in another version.
"""
_SPARK_HAS = (
    "com.*:*,commons-*:*,io.airlift:*,javax.*:*,org.apache.hadoop:*,org.apache.logging.*:*,org.apache.parquet:*"
    ",org.locationtech.*:*,org.roaringbitmap:*,org.scala-lang*:*,org.slf4j:*,org.tukaani:*,org.xerial.*:*"
)
"""Patterns of the dependencies that are not downloaded."""


NOT_INSTALLED = (
    "Delta's JARs are missing: run `spark-log delta install` once on every machine of the Spark cluster,"
    f" or start with spark-submit --packages {PACKAGE}"
)


def spark_jars_folder() -> Path:
    """Return the `jars` folder of the Spark that this interpreter uses: in SPARK_HOME, or else in installed pyspark."""
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home()) / "jars"


def check_spark(jars: Path) -> None:
    """Raise DeltaNotInstalledError if Delta's JARs are for another version than the Spark of the folder `jars`.

    A Spark whose version the folder does not show is accepted.
    """
    versions = [file.stem.rpartition("-")[2] for file in jars.glob("spark-core_*.jar")]
    if versions and not any(version.startswith(f"{SPARK}.") for version in versions):
        raise DeltaNotInstalledError(
            f"Delta's newest JARs are for Spark {SPARK}, and this is Spark {versions[0]}: install spark-log with its"
            " extra 'delta', which selects that Spark. format(\"spark_log\") and published Delta tables need no JARs"
        )


def missing_in(folder: Path) -> list[str]:
    """Return the JARs that are not in `folder` with the right content."""
    return [name for name, expected in JARS.items() if _sha256(folder / name) != expected]


def install(folder: Path, report: Callable[[str], None]) -> list[str]:
    """Download and verify the JARs that `folder` lacks, and copy them there. Return their names. Remove other versions.

    `report` gets a line of progress for each file. Raises DeltaNotInstalledError with advice, for example if the JARs
    are for another Spark version; `folder` is then unchanged.
    """
    check_spark(spark_jars_folder())
    missing = missing_in(folder)
    if missing:
        _check_writable(folder)
        with tempfile.TemporaryDirectory(prefix="spark-log-jars-") as scratch:
            _download(Path(scratch), report)
            fetched = Path(scratch) / "ivy" / "jars"
            for name in missing:
                if _sha256(fetched / name) != JARS[name]:
                    raise DeltaNotInstalledError(
                        f"{name} has not the expected SHA-256; nothing was installed."
                        " The repository, mirror or proxy served another file"
                    )
            for name in missing:
                _place(fetched / name, folder / name)
    for stale in _other_versions(folder):
        stale.unlink()
        report(f"removed {stale.name}")
    return missing


def check_loaded(session: "SparkSession") -> None:
    """Raise DeltaNotInstalledError unless the running Spark has Delta's classes."""
    from pyspark.sql.utils import is_remote

    if is_remote():  # only the server knows, and its error names the format
        return
    jvm: Any = session.sparkContext._jvm
    if not all(jvm.org.apache.spark.util.Utils.classIsLoadable(name) for name in DELTA_SETTINGS.values()):
        raise DeltaNotInstalledError(NOT_INSTALLED)


def is_loaded(session: "SparkSession") -> bool:
    """Whether the running Spark has Delta's classes, and the session has Delta's extension. Without the extension,
    Spark would not apply deletion vectors.
    """
    if DELTA_SETTINGS["spark.sql.extensions"] not in (session.conf.get("spark.sql.extensions", "") or ""):
        return False
    try:
        check_loaded(session)
    except DeltaNotInstalledError:
        return False
    return True


def _sha256(file: Path) -> str | None:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def _check_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise DeltaNotInstalledError(
            f"cannot write to {folder} ({error.strerror}): run this as the user who installed Spark,"
            " or choose a folder with --jars-dir"
        ) from error


def _place(source: Path, target: Path) -> None:
    """Copy the file atomically: a Spark that starts meanwhile never sees a partial file."""
    partial = target.with_suffix(".partial")
    shutil.copyfile(source, partial)
    os.replace(partial, target)


def _other_versions(folder: Path) -> Iterator[Path]:
    for name in JARS:
        artifact = name.rpartition("-")[0]
        yield from (file for file in folder.glob(f"{artifact}-[0-9]*.jar") if file.name not in JARS)


def _download(scratch: Path, report: Callable[[str], None]) -> None:
    """Run Ivy, which downloads the packages to `scratch`/ivy/jars."""
    program = scratch / "nothing.py"  # spark-submit resolves packages before it runs a program
    program.write_text("")
    submit = spark_jars_folder().parent / "bin" / "spark-submit"
    command: Sequence[str | Path] = [
        submit, "--master", "local[1]", "--deploy-mode", "client", "--packages", f"{PACKAGE},{AVRO_PACKAGE}",
        "--exclude-packages", _SPARK_HAS, "--conf", f"spark.jars.ivy={scratch / 'ivy'}", program,
    ]  # fmt: skip
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    lines = []
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.strip())
            if lines[-1].startswith("downloading "):
                report(lines[-1].removesuffix(" ..."))
    if process.returncode != 0:
        raise DeltaNotInstalledError(_reason(lines, os.environ))


def _reason(output: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the reason of a failed spark-submit with advice, from its output."""
    if any("JAVA_HOME is not set" in line for line in output):
        return "Spark needs Java 17 or later: install it, or set JAVA_HOME"
    failures = [line for line in output if line.startswith(("Server access error", "Host "))]
    failures += [line.partition(": ")[2] for line in output if line.startswith("Exception in thread")]
    reason = (failures or output or ["no output"])[0]
    if any("unresolved dependency" in line or "download failed" in line for line in output):
        mirror = environment.get("DEFAULT_ARTIFACT_REPOSITORY")
        where = f"the mirror {mirror} (DEFAULT_ARTIFACT_REPOSITORY)" if mirror else "Maven Central"
        hint = "" if mirror else "; without access to it, set DEFAULT_ARTIFACT_REPOSITORY to the URL of a mirror"
        return f"{where} could not be reached or does not have the JARs{hint}. Ivy says: {reason}"
    return f"spark-submit failed: {reason}"
