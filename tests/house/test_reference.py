"""The generated parts of the reference are complete."""

import re
from pathlib import Path

import pytest
import typer.main

from spark_log.cli.main import app

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))


def test_each_error_has_a_cause_and_a_remedy() -> None:
    from docs_tables import cause_and_remedy, error_classes, errors

    assert [kind.__name__ for kind in error_classes() if not all(cause_and_remedy(kind))] == []
    assert re.findall(r"^### `(.*)`$", errors(), re.MULTILINE) == [kind.__name__ for kind in error_classes()]


def test_each_command_has_a_section() -> None:
    from docs_cli import reference

    sections = re.findall(r"^#+ `spark-log (.*)`$", reference(), re.MULTILINE)
    expected = []
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        children = getattr(command, "commands", {}).items()
        shown = [name, *(f"{name} {child}" for child, each in children if not each.hidden)]
        expected += [] if command.hidden else shown
    assert sorted(sections) == sorted(expected)


def test_each_job_has_a_section_with_its_options() -> None:
    from docs_cli import jobs_reference

    programs = sorted(path.stem for path in (REPOSITORY / "jobs").glob("*.py"))
    sections = re.split(r"^## (\w+)$", jobs_reference(), flags=re.MULTILINE)
    assert sections[1::2] == programs
    assert [name for name, text in zip(sections[1::2], sections[2::2], strict=True) if "* `--cluster" not in text] == []


def test_pages_include_each_generated_part_and_no_other() -> None:
    from docs_hooks import GENERATED

    pages = "".join(path.read_text() for path in (REPOSITORY / "docs").rglob("*.md"))
    assert sorted(re.findall(r"^<!-- generated: (.*) -->$", pages, re.MULTILINE)) == sorted(GENERATED)


def test_page_names_each_option_of_the_data_source() -> None:
    page = (REPOSITORY / "docs" / "reference" / "options.md").read_text()
    sources = (REPOSITORY / "spark_log" / "spark" / "datasource" / "options").glob("*.py")
    read = r'(?:texts|given|options)\.(?!refuse|names)\w+\(f?"(\{side\})?([\w.]+)"'
    options = {found[1] for path in sources for found in re.findall(read, path.read_text())}
    assert len(options) > 20
    set_by_functions = {"startingLineage", "transaction"}
    options = {name for name in options if not name.startswith("kafka.")} - set_by_functions
    assert sorted(name for name in options if name.lower() not in page.lower()) == []
