"""`spark-submit aggregate.py --help`. The code is in spark_log.jobs.aggregate; PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.jobs.aggregate import main

if __name__ == "__main__":
    sys.exit(main())
