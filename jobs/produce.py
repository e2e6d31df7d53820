"""`spark-submit produce.py --help`. The code is in spark_log.spark.jobs.produce; PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.spark.jobs.produce import main

if __name__ == "__main__":
    sys.exit(main())
