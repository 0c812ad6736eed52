"""Checks of topic names, partitions and topic ids, before they become file names or lines of a checkpoint.

Source: Kafka's Topic.validate.
"""

from __future__ import annotations

from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.checkpoints import parse_uuid
from sediment.segment_io.format.layout import INT32_MAX
from sediment.segment_io.format.names import LONGEST_FILE_NAME, TopicPartition, is_topic_name


def check_topic(topic: str) -> None:
    if not is_topic_name(topic):
        raise UsageError(
            f"{topic!r} is not a topic name",
            advice="use 1 to 249 letters, digits, dots, underscores and hyphens, and neither . nor ..",
        )


def check_partition(partition: TopicPartition) -> None:
    check_topic(partition.topic)
    if not 0 <= partition.partition <= INT32_MAX:
        raise UsageError(
            f"{partition.partition} is not a partition number of topic {partition.topic}",
            advice=f"use a number from 0 to {INT32_MAX}",
        )
    if len(str(partition)) > LONGEST_FILE_NAME:
        raise UsageError(
            f"{partition} is longer than {LONGEST_FILE_NAME} characters, the limit for a directory",
            advice="use a shorter topic name",
        )


def check_topic_id(topic_id: str) -> None:
    try:
        is_zero = not any(parse_uuid(topic_id))
    except ValueError as error:
        raise UsageError(f"the topic id is malformed: {error}", advice="give the id that Kafka shows") from error
    if is_zero:
        raise UsageError("the all-zero topic id is reserved", advice="give the topic's own id")
