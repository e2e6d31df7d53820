"""The mean delays of the carriers: one SQL query over the Delta tables of topic `flights`.

    make demo          or          spark-submit scripts/demo_carriers.py --out carriers.json TABLE...

TABLE: the folder of a Delta table of the topic, one for each log dir. The topic is typed, so the query needs no JSON.
"""

import argparse
import json
import sys
from pathlib import Path

from spark_log.spark.jobs.session import end_session, start_session

QUERY = """
SELECT record.carrier AS carrier, count(*) AS flights,
       sum(record.dep_delay) / count(record.dep_delay) AS dep_delay,
       sum(record.arr_delay) / count(record.arr_delay) AS arr_delay
FROM ({tables}) GROUP BY record.carrier ORDER BY dep_delay DESC
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="file for the answer, as JSON")
    parser.add_argument("tables", nargs="+", metavar="TABLE")
    arguments = parser.parse_args()
    spark = start_session("spark-log demo: carriers", delta=True)
    for setting in ("spark.sql.shuffle.partitions", "spark.databricks.delta.snapshotPartitions"):
        spark.conf.set(setting, "2")  # the tables are small
    tables = " UNION ALL ".join(f"SELECT record FROM delta.`{table}`" for table in arguments.tables)
    query = QUERY.format(tables=tables)
    print(query.strip().replace(tables, "... the topic's Delta table"))
    answer = [row.asDict() for row in spark.sql(query).collect()]
    Path(arguments.out).write_text(json.dumps(answer))
    end_session(spark)
    return 0


if __name__ == "__main__":
    sys.exit(main())
