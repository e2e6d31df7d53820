"""spark-submit jobs/upkeep.py --help: the code is spark_log.jobs.upkeep. PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.jobs.upkeep import main

if __name__ == "__main__":
    sys.exit(main())
