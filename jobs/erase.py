"""`spark-submit erase.py --help`. The code is in spark_log.spark.jobs.erase; PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.spark.jobs.erase import main

if __name__ == "__main__":
    sys.exit(main())
