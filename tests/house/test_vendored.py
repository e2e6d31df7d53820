"""Files of other projects are in the package unmodified, with their licence and version."""

import hashlib
import json
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
FOLDERS = [file.parent for file in REPOSITORY.glob("*/**/vendor/manifest.json") if ".venv" not in file.parts]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(REPOSITORY)))
def test_the_manifest_has_the_hash_of_every_vendored_file(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    expected = {name: digest for package in manifest for name, digest in package["sha256"].items()}
    found = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.iterdir()
        if file.name != "manifest.json"
    }
    assert found == expected
    assert all(package["license_file"] in package["sha256"] and package["version"] for package in manifest)


def test_the_console_has_vendored_files() -> None:
    assert REPOSITORY / "spark_log/console/static/vendor" in FOLDERS
