"""The message for a missing optional dependency.

No package index has spark-log, so another project could take the name there. A message must not suggest a `pip install`
of the bare name.
"""


def install_extra(name: str) -> str:
    """How to install an extra (an entry of `optional-dependencies` in pyproject.toml): the end of an error message."""
    return f"install spark-log with its extra '{name}': pip install '.[{name}]' in spark-log's repository"
