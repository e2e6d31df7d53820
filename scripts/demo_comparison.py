"""Compares the flights that came back, and the delays by carrier, with what pandas reads from the source."""

from collections.abc import Sequence

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

COMPARED = ["carrier", "flight", "tailnum", "time_hour", "dep_delay", "arr_delay"]


def compare(received: pd.DataFrame, expected: pd.DataFrame) -> list[str]:
    """Differences as lines, none if all is equal."""
    differences = []
    keys = received["_key"]
    wrong_keys = int((keys.fillna("") != received["tailnum"].fillna("")).sum())
    if wrong_keys:
        differences.append(f"{wrong_keys:,} records have a key that is not their tail number")
    if keys.isna().sum() != expected["tailnum"].isna().sum():
        differences.append(f"null keys: {keys.isna().sum():,}, expected {expected['tailnum'].isna().sum():,}")
    if (malformed := int(received["_malformed"].notna().sum())) > 0:
        differences.append(f"{malformed:,} values are not the JSON that was sent")
    places = received.groupby("_partition", observed=True)["_offset"].agg(["min", "max", "nunique", "count"])
    if not ((places["max"] - places["min"] + 1 == places["count"]) & (places["nunique"] == places["count"])).all():
        differences.append("offsets are not dense and unique in every partition")
    if received.dropna(subset="_key").groupby("_key")["_partition"].nunique().max() != 1:
        differences.append("records of one key are in several partitions")
    return differences + _different_records(received, expected)


def compare_carriers(by_spark: pd.DataFrame, tables: Sequence[str], expected: pd.DataFrame) -> list[str]:
    """Differences between the answers of Spark SQL, of deltalake with pyarrow, and of pandas from the source."""
    field = pc.field("record", "carrier")
    columns = {"carrier": field, **{name: pc.field("record", name) for name in ("dep_delay", "arr_delay")}}
    read = pa.concat_tables(DeltaTable(table).to_pyarrow_dataset().to_table(columns=columns) for table in tables)
    theirs = by_carrier(expected)
    differences = []
    for reader, ours in {"Spark SQL": by_spark[theirs.columns], "deltalake": by_carrier(read.to_pandas())}.items():
        if not ours.sort_index().equals(theirs.sort_index()):
            differences += [f"the delays by carrier of {reader} differ from pandas':"]
            differences += (ours.join(theirs, rsuffix=" of pandas", how="outer")).to_string().splitlines()
    return differences


def by_carrier(flights: pd.DataFrame) -> pd.DataFrame:
    groups = flights.assign(
        dep_delay=flights["dep_delay"].astype("float64"), arr_delay=flights["arr_delay"].astype("float64")
    ).groupby("carrier")
    delays = groups[["dep_delay", "arr_delay"]]
    # sums of whole minutes are exact in any order of the records, and so are these quotients
    means = delays.sum() / delays.count()
    return means.assign(flights=groups.size()).sort_values("dep_delay", ascending=False)


def _different_records(received: pd.DataFrame, expected: pd.DataFrame) -> list[str]:
    """Both as multisets of (carrier, flight, tail number, time, delays): what is in one and not in the other."""
    mine = received.rename(columns={"_timestamp": "time_hour"})[COMPARED].copy()
    times = mine["time_hour"]
    mine["time_hour"] = times.dt.tz_localize("UTC") if times.dt.tz is None else times.dt.tz_convert("UTC")

    def counted(frame: pd.DataFrame) -> pd.Series:
        frame = frame.assign(
            time_hour=frame["time_hour"].astype("datetime64[us, UTC]"),
            **{name: frame[name].astype("float64") for name in ("flight", "dep_delay", "arr_delay")},
        )
        return frame.groupby(COMPARED, dropna=False, sort=False).size()

    both = pd.concat([counted(mine), -counted(expected)])
    delta = both.groupby(level=COMPARED, dropna=False, sort=False).sum()
    wrong = delta[delta != 0]
    lines = [f"{len(wrong):,} different records differ in number, the first of them:"] if len(wrong) else []
    return lines + wrong.head(10).to_string().splitlines() if lines else lines
