"""Rules for every file that git tracks."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
LARGEST_BYTES = 1_000_000

# Split into parts, so that this file itself obeys the rules.
MACHINE_PATHS = re.compile(
    "|".join((r"/work" r"/(main|shared|\.library)\b", r"/root" r"/", r"/home" r"/[a-z]", r"\.pyenv" r"/"))
)
REGISTRIES = re.compile(
    "|".join(
        "\\.".join(host)
        for host in (
            ("pypi", "org"),
            ("files", "pythonhosted", "org"),
            ("registry", "npmjs", "org"),
            ("proxy", "golang", "org"),
            ("repo1?", "maven", "(apache|org)"),
            ("repo", "maven", "apache", "org"),
            ("deb", "debian", "org"),
            ("crates", "io"),
        )
    )
)

INDEX_NAME = re.compile(r"\b(?:pip3? install|uv add)\b[^\n]*[\s'\"`]" r"spark[-_]log(?![-_]\S*\.whl|'s )")


def tracked() -> Iterator[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (path := REPOSITORY / name).is_file():
            yield path


def found(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()}"
        for path in tracked()
        if pattern.search(text := path.read_text(errors="replace"))
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_the_patterns_find_their_targets() -> None:
    assert MACHINE_PATHS.search("/work" + "/main/x")
    assert MACHINE_PATHS.search("/home" + "/ada/x")
    for host in ("pypi" + ".org", "repo1.maven" + ".org", "repo.maven" + ".apache.org", "registry.npmjs" + ".org"):
        assert REGISTRIES.search(f"https://{host}/simple"), host


def test_no_path_of_one_machine() -> None:
    assert found(MACHINE_PATHS) == []


def test_no_address_of_a_package_registry() -> None:
    assert found(REGISTRIES) == []


def test_no_suggestion_to_install_spark_log_from_a_package_index() -> None:
    """No package index has spark-log: another project could take the name there, and its code would run on workers."""
    assert INDEX_NAME.search("pip install 'spark" + "-log[gateway]'")
    assert not INDEX_NAME.search("pip install spark_log-0.1.0-py3-none-any.whl")
    assert found(INDEX_NAME) == []


def test_no_large_file() -> None:
    assert [(path.name, size) for path in tracked() if (size := path.stat().st_size) > LARGEST_BYTES] == []
