"""Checks whether the versions of Python, Java and packages work together. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spark_log.facts.doctor.findings import Finding, error, note, or_ok, warning

CHECK = "versions"

PYTHON_RANGE = ((3, 11), (3, 14))
KNOWN_RANGES: Mapping[str, tuple[tuple[int, ...], tuple[int, ...] | None]] = {
    "deltalake": ((1, 6, 6), (2,)),
    "kafka-python": ((3, 0, 12), (3, 1)),
    "pandas": ((2, 2, 3), (3,)),
    "pyarrow": ((21,), None),
    "pyspark": ((4, 2), (4, 4)),
    "delta-spark": ((4, 4), (4, 5)),
}
"""The ranges of pyproject.toml: at least the first version, below the second."""

JAVA_MIN = 17
SPARK_OF_DELTA = (4, 2)
"""The Spark for which Delta's JARs are compiled."""


@dataclass(frozen=True)
class Versions:
    """The versions on this machine. `java` is None without Java, and `packages` has the installed packages only."""

    spark_log: str
    python: tuple[int, ...]
    packages: Mapping[str, str]
    java: int | None


def check_versions(versions: Versions) -> list[Finding]:
    seen = ", ".join(
        [
            f"spark-log {versions.spark_log}",
            f"Python {'.'.join(map(str, versions.python))}",
            *(f"{name} {version}" for name, version in sorted(versions.packages.items())),
            f"Java {versions.java}" if versions.java else "no Java",
        ]
    )
    return or_ok(_problems(versions), CHECK, seen)


def _problems(versions: Versions) -> Iterator[Finding]:
    low, high = PYTHON_RANGE
    if not low <= versions.python[:2] < high:
        yield error(
            CHECK,
            f"Python {'.'.join(map(str, versions.python))} is not one of 3.{low[1]} to 3.{high[1] - 1}",
            f"make an environment with Python 3.{low[1]} to 3.{high[1] - 1}, and install spark-log there",
        )
    for name, (least, below) in KNOWN_RANGES.items():
        if name not in versions.packages:
            continue
        version = release_of(versions.packages[name])
        if version < least or (below is not None and version >= below):
            limit = "" if below is None else f",<{_dotted(below)}"
            yield warning(
                CHECK,
                f"{name} {versions.packages[name]} is outside the range with which spark-log is tested",
                f"pip install '{name}>={_dotted(least)}{limit}'",
            )
    spark = versions.packages.get("pyspark")
    if spark is None:
        return
    if versions.java is None or versions.java < JAVA_MIN:
        has = "there is no Java" if versions.java is None else f"Java is {versions.java}"
        yield note(
            CHECK,
            f"{has}: Spark does not start here; the command line and the Python clients need no Java",
            f"install Java {JAVA_MIN} or later, or set JAVA_HOME",
        )
    if "delta-spark" in versions.packages and release_of(spark)[:2] != SPARK_OF_DELTA:
        yield warning(
            CHECK,
            f"pyspark {spark} with delta-spark {versions.packages['delta-spark']}: Delta's JARs are for Spark"
            f" {_dotted(SPARK_OF_DELTA)}",
            f"pip install 'pyspark=={_dotted(SPARK_OF_DELTA)}.*', or pip uninstall delta-spark",
        )


def release_of(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (4, 2, 0) of 4.2.0rc1."""
    numbers: list[int] = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
