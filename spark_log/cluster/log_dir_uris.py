"""Converts and checks the URIs of log dirs that users write."""

import os
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from spark_log.errors import InvalidConfigurationError, redact


def asks_for_region(uri: str) -> bool:
    """Whether opening the file system of this URI requests the region of the bucket from Amazon."""
    parts = urlsplit(uri)
    return parts.scheme == "s3" and not parse_qs(parts.query).keys() & {"region", "endpoint_override"}


def local_uri(folder: Path) -> str:
    """Return the file:// URI of a local folder, absolute and without symbolic links."""
    return Path(os.path.realpath(folder)).as_uri()


def normalise_uri(text: str) -> str:
    """Return the URI of a log dir from a URI or a local folder. A local one is absolute, without symbolic links.

    Raises InvalidConfigurationError if the text is blank.
    """
    if not text.strip():
        raise InvalidConfigurationError(f"log dir: expected a folder or a URI, got {text!r}")
    scheme, separator, _ = text.partition("://")
    if not separator:
        return local_uri(Path(os.path.expanduser(text)))
    if scheme == "file":
        return local_uri(Path(unquote(urlsplit(text).path)))
    return text.rstrip("/")


def location_of(uri: str, relative: str) -> str:
    """Return the location of a file for people, Delta and Spark: a local path, or a URI without its query. Log dirs of
    earlier releases may have paths instead of URIs.
    """
    if uri.startswith("/"):
        return f"{uri.rstrip('/')}/{relative}"
    scheme, _, rest = uri.partition("?")[0].partition("://")
    if scheme == "file":
        return f"{unquote(rest).rstrip('/')}/{relative}"
    bucket, slash, path = rest.partition("/")  # an @ may be in the path too
    return f"{scheme}://{(bucket.rpartition('@')[2] + slash + path).rstrip('/')}/{relative}"


def refuse_overlap(uri: str, others: list[str]) -> None:
    """Raise InvalidConfigurationError if `uri` equals, contains or is inside one of `others`.

    Log dirs must not share files.
    """

    def location(value: str) -> str:
        parts = urlsplit(value)  # without keys, with the endpoint: two may have buckets of one name
        endpoint = parse_qs(parts.query).get("endpoint_override", [""])[-1]
        return f"{parts.scheme}://{endpoint}/{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}/"

    for other in others:
        mine, theirs = location(uri), location(other)
        if mine.startswith(theirs) or theirs.startswith(mine):
            raise InvalidConfigurationError(
                f"log dir: {redact(uri)} overlaps {redact(other)}, which is a log dir already"
            )


def refuse_percent_sign(uri: str) -> None:
    """Raise InvalidConfigurationError for a local folder with % in its path: deltalake decodes it once too often."""
    if uri.startswith("file:") and "%25" in uri:
        raise InvalidConfigurationError(
            f"log dir: {unquote(uri)} has a % in its path, where Delta tables cannot be read"
        )
