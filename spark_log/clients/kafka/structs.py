"""kafka.structs."""

from kafka.structs import *  # noqa: F403
