"""Draws the year's delays: reads topic `delays` and makes delays.png and delays.html.

    python scripts/demo_page.py --cluster ADDRESS [--topic delays] [--work .demo] [--help]

Above: departures a day, and their mean delay. Below: how much it rained in New York, and how hard the wind blew.
"""

import argparse
import base64
import html
import io
import os
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
import pyarrow as pa
import pyarrow.json as pj

from spark_log import Consumer
from spark_log.errors import SparkLogError, redact
from spark_log.ids import TopicPartition


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", default=os.environ.get("SPARK_LOG_CLUSTER"), help="[env SPARK_LOG_CLUSTER]")
    parser.add_argument("--topic", default="delays")
    parser.add_argument("--work", default=".demo", help="where the two files go [%(default)s]")
    arguments = parser.parse_args()
    if not arguments.cluster:
        parser.error("--cluster: needed (or environment variable SPARK_LOG_CLUSTER)")
    try:
        hourly = read_json(arguments.cluster, arguments.topic)
    except SparkLogError as error:
        print(f"demo_page: {redact(str(error))}", file=sys.stderr)
        return 1
    if hourly.empty:
        print(f"demo_page: topic {arguments.topic!r} is empty: `make demo` fills it", file=sys.stderr)
        return 1
    for path in draw(by_day(hourly), Path(arguments.work)):
        print(path)
    return 0


def read_json(cluster: str, topic: str) -> pd.DataFrame:
    """The values of a topic, JSON objects, as a table with a column for each of their fields."""
    with Consumer(cluster=cluster, enable_auto_commit=False) as consumer:
        partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        left = dict(consumer.end_offsets(partitions))
        values: list[bytes] = []
        while any(consumer.position(partition) < end for partition, end in left.items()):
            for table in consumer.poll_arrow(timeout_ms=1_000).values():
                values += table.column("value").to_pylist()
    if not values:
        return pd.DataFrame()
    lines: pa.Table = pj.read_json(io.BytesIO(b"\n".join(values)))
    return lines.to_pandas()


def by_day(hourly: pd.DataFrame) -> pd.DataFrame:
    """Per day (UTC): departures, mean departure delay in minutes, rain in inches and mean wind in mph over airports."""
    days = pd.to_datetime(hourly["hour"], utc=True).dt.floor("D").rename("day")
    groups = hourly.groupby(days)
    return pd.DataFrame(
        {
            "departures": groups["departures"].sum(),
            "delay": groups["delay_minutes"].sum() / groups["departures"].sum(),
            "rain": groups["precip"].sum() / groups["origin"].nunique(),
            "wind": groups["wind_speed"].mean(),
        }
    )


def draw(daily: pd.DataFrame, folder: Path) -> list[Path]:
    """Makes delays.png and delays.html in the folder."""
    figure, (flights, weather) = plt.subplots(2, 1, figsize=(12, 7), sharex=True, layout="constrained")
    flights.bar(daily.index, daily["departures"], width=1.0, color="#c9d6e3", label="departures")
    flights.set_ylabel("departures a day")
    delay = flights.twinx()
    delay.plot(daily.index, daily["delay"], color="#b2182b", linewidth=1.2, label="mean delay")
    delay.set_ylabel("mean departure delay (minutes)", color="#b2182b")
    flights.set_title("Flights from New York in 2013, computed by two streaming queries on spark-log")
    weather.bar(daily.index, daily["rain"], width=1.0, color="#2166ac", label="rain")
    weather.set_ylabel("precipitation a day (inches)", color="#2166ac")
    wind = weather.twinx()
    wind.plot(daily.index, daily["wind"], color="#666666", linewidth=0.9, label="wind")
    wind.set_ylabel("mean wind speed (mph)", color="#666666")
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110)
    plt.close(figure)
    picture, page = folder / "delays.png", folder / "delays.html"
    picture.write_bytes(image.getvalue())
    page.write_text(_page(daily, image.getvalue()), encoding="utf-8")
    return [picture, page]


def _page(daily: pd.DataFrame, image: bytes) -> str:
    worst = daily.sort_values("delay", ascending=False).head(10)
    rows = "".join(
        f"<tr><td>{html.escape(f'{day:%Y-%m-%d}')}<td>{row.departures:,.0f}<td>{row.delay:.1f}<td>{row.rain:.2f}"
        f"<td>{row.wind:.1f}</tr>"
        for day, row in zip(worst.index, worst.itertuples(), strict=True)
    )
    correlation = daily["delay"].corr(daily["rain"])
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Delays from New York, 2013</title>
<style>
 body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }}
 img {{ max-width: 100%; }} td, th {{ padding: 0 1rem 0 0; text-align: right; }}
</style>
<h1>Delays from New York, 2013</h1>
<p>{daily["departures"].sum():,.0f} departures on {len(daily)} days, read from topic <code>delays</code>.
Correlation of a day's mean delay with its rain: {correlation:.2f}.</p>
<img alt="departures and mean delay a day, above precipitation and wind"
 src="data:image/png;base64,{base64.b64encode(image).decode()}">
<h2>The ten worst days</h2>
<table><tr><th>day (UTC)<th>departures<th>mean delay, min<th>rain, in<th>wind, mph</tr>{rows}</table>
</html>
"""


if __name__ == "__main__":
    sys.exit(main())
