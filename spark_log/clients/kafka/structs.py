"""Provides kafka-python's module kafka.structs."""

from kafka.structs import *  # noqa: F403
