"""The demo's comparison finds lost, doubled, altered and misplaced records."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import write_deltalake

DEMO = Path(__file__).parents[2] / "scripts" / "demo_comparison.py"


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo_comparison", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def source() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "carrier": ["AA", "UA", "AA", "UA"],
            "flight": [1, 2, 3, 4],
            "tailnum": ["x", "y", None, "x"],
            "time_hour": pd.to_datetime(["2013-01-01T10:00:00Z"] * 4),
            "dep_delay": [1.0, None, 3.0, -4.0],
            "arr_delay": [2.0, None, None, 5.0],
        }
    )


@pytest.fixture
def received(source: pd.DataFrame) -> pd.DataFrame:
    about = {"_key": source["tailnum"], "_partition": [0, 1, 1, 0], "_offset": [0, 0, 1, 1], "_malformed": None}
    return source.rename(columns={"time_hour": "_timestamp"}).assign(**about).sample(frac=1, random_state=1)


def test_equal_data_has_no_differences(demo: ModuleType, received: pd.DataFrame, source: pd.DataFrame) -> None:
    assert demo.compare(received, source) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda frame: frame.drop(frame.index[0]), "different records differ in number"),
        (lambda frame: pd.concat([frame, frame.head(1)]), "different records differ in number"),
        (lambda frame: frame.assign(dep_delay=frame["dep_delay"] + 1), "differ in number"),
        (lambda frame: frame.assign(_timestamp=frame["_timestamp"] + pd.Timedelta("1h")), "differ in number"),
        (lambda frame: frame.assign(_key=frame["_key"].fillna("null")), "null keys: 0, expected 1"),
        (lambda frame: frame.assign(_key="x"), "have a key that is not their tail number"),
        (lambda frame: frame.assign(_offset=[0, 0, 1, 3]), "offsets are not dense"),
        (lambda frame: frame.assign(_partition=frame["flight"]), "records of one key are in several partitions"),
        (lambda frame: frame.assign(_malformed="?"), "4 values are not the JSON"),
    ],
)
def test_differences_are_reported(
    demo: ModuleType, received: pd.DataFrame, source: pd.DataFrame, change: object, said: str
) -> None:
    assert callable(change)
    assert said in "\n".join(demo.compare(change(received), source))


def test_the_delays_by_carrier_of_each_reader_are_compared(
    demo: ModuleType, source: pd.DataFrame, tmp_path: Path
) -> None:
    fields = pa.Table.from_pandas(source[["carrier", "dep_delay", "arr_delay"]], preserve_index=False)
    write_deltalake(str(tmp_path), pa.table({"record": fields.to_struct_array().combine_chunks()}))
    right = demo.by_carrier(source)
    assert demo.compare_carriers(right, [str(tmp_path)], source) == []
    assert "of Spark SQL differ" in "\n".join(demo.compare_carriers(right + 1, [str(tmp_path)], source))
    twice = [str(tmp_path), str(tmp_path)]
    assert "of deltalake differ" in "\n".join(demo.compare_carriers(right, twice, source))
