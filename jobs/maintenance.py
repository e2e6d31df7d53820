"""spark-submit jobs/maintenance.py --help: the code is spark_log.jobs.maintenance. PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.jobs.maintenance import main

if __name__ == "__main__":
    sys.exit(main())
