"""A canary: bytes of records that were erased, searched for in every file that a cluster has written."""

from collections.abc import Iterable
from pathlib import Path

from spark_log.cluster.cluster import Cluster
from tests.support.replicas import folder_of


def places_with(cluster: Cluster, root: Path, *texts: bytes, away: Iterable[int] = ()) -> dict[str, str]:
    """Every file below `root` that contains one of `texts`, and the text that a report naming its place must contain.

    `root` has the folders of all log dirs and of the metadata store. `away`: brokers whose log dir was moved aside to
    `<log dir>-away`, as `replicas.take_away` does.
    """
    folders = {folder_of(cluster, info.broker_id): info.broker_id for info in cluster.log_dirs().values()}
    aside = {Path(f"{folder}-away"): folder for folder, broker_id in folders.items() if broker_id in set(away)}
    found: dict[str, str] = {}
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        if any(text in path.read_bytes() for text in texts):
            found[str(path)] = _place(path, set(folders), aside)
    return found


def _place(path: Path, log_dirs: Iterable[Path], aside: dict[Path, Path]) -> str:
    """The log dir of an unavailable file, the path of any other file in its log dir, or the store's folder."""
    for folder, log_dir in aside.items():
        if path.is_relative_to(folder):
            return str(log_dir)
    for log_dir in log_dirs:
        if path.is_relative_to(log_dir):
            return str(path.relative_to(log_dir))
    return str(path.parent)


def unnamed_places(notes: Iterable[str], places: dict[str, str]) -> list[str]:
    """The files whose place is not in any note."""
    text = "\n".join(notes)
    return [path for path, place in places.items() if place not in text]
