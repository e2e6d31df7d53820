"""`spark-submit maintenance.py --help`. The code is in spark_log.jobs.maintenance; PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.jobs.maintenance import main

if __name__ == "__main__":
    sys.exit(main())
