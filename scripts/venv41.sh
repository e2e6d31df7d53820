#!/usr/bin/env bash
# Makes the virtual environment $1, with the Python $2, of the newest PySpark that has a runtime of Iceberg, and puts that
# beside Spark's JARs. spark-log is not in it. Spark's resolver downloads the JAR, as it does for `spark.jars.packages`.
set -euo pipefail
venv=$(realpath -m "$1")
pyspark=4.1.4
package=org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0
jar=org.apache.iceberg_iceberg-spark-runtime-4.1_2.13-1.12.0.jar
sha256=3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82

[[ -x $venv/bin/python ]] || "$2" -m venv "$venv"
echo "installing PySpark $pyspark and Iceberg's runtime into $venv: 600 MB"
"$venv/bin/python" -m pip install --quiet --progress-bar off --disable-pip-version-check "pyspark==$pyspark"

scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
touch "$scratch/nothing.py" # spark-submit resolves packages before it runs a program
env -u SPARK_HOME PATH="$venv/bin:$PATH" PYSPARK_PYTHON="$venv/bin/python" PYSPARK_DRIVER_PYTHON="$venv/bin/python" \
    "$venv/bin/spark-submit" --master 'local[1]' --packages "$package" --conf "spark.jars.ivy=$scratch/ivy" \
    "$scratch/nothing.py" >"$scratch/messages" 2>&1 || { cat "$scratch/messages" >&2; exit 1; }
echo "$sha256  $scratch/ivy/jars/$jar" | sha256sum --check --quiet
mv "$scratch/ivy/jars/$jar" "$("$venv/bin/python" -c 'import pyspark; print(pyspark.__path__[0])')/jars/"
