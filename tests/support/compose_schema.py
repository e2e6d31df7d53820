"""The JSON schema of the Compose Specification, from a package that contains it, instead of a copy here."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

GO_MODULE = "github.com/compose-spec/compose-go/v2@v2.16.2"
"""The library of the specification, for machines with Go."""
PYTHON_PACKAGE = "docker-compose==1.29.2"
"""An older schema, for machines without Go. Later versions of the schema only add to it."""


def fetch(folder: Path) -> dict[str, Any]:
    """The schema; `folder` gets the downloaded files."""
    text = _from_go(folder) if shutil.which("go") else _from_pip(folder)
    schema: dict[str, Any] = json.loads(text)
    return schema


def _from_go(folder: Path) -> str:
    download = ["go", "mod", "download", "-json", GO_MODULE]
    done = subprocess.run(download, cwd=folder, check=True, capture_output=True, text=True, timeout=300)
    return Path(json.loads(done.stdout)["Dir"], "schema", "compose-spec.json").read_text()


def _from_pip(folder: Path) -> str:
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PYTHON_PACKAGE]
    subprocess.run(download, check=True, timeout=300)
    (wheel,) = folder.glob("docker_compose-*.whl")
    return zipfile.ZipFile(wheel).read("compose/config/compose_spec.json").decode()
