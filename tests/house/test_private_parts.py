"""Private parts of libraries that spark_log uses. Their minor versions are pinned: another one may lack the part."""

import re
import tomllib
from pathlib import Path

import pytest
from kafka.protocol.metadata import MetadataRequest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).resolve().parents[2]
PARTS = [
    # its public encode and decode know neither the limits of a request nor the fields of a message
    ("kafka-python", MetadataRequest, "_struct"),
    ("kafka-python", MetadataRequest(), "_header"),
    ("kafka-python", MetadataRequest._struct, "compiled_decode_from"),
]


@pytest.mark.parametrize(("package", "owner", "part"), PARTS, ids=lambda each: each if isinstance(each, str) else "")
def test_a_private_part_exists_and_the_minor_version_is_pinned(package, owner, part):
    assert hasattr(owner, part) or part in getattr(owner, "__slots__", ())
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    [found] = [each for each in map(Requirement, project["dependencies"]) if each.name == package]
    assert any(each.operator == "<" and re.fullmatch(r"\d+\.\d+", each.version) for each in found.specifier)
