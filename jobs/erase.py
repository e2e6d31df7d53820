"""`spark-submit erase.py --help`. The code is in spark_log.jobs.erase; PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.jobs.erase import main

if __name__ == "__main__":
    sys.exit(main())
