"""Messages of Kafka's protocol by name, such as `messages.FetchRequest` and `messages.FetchResponse.PartitionData`.

Each class is created at its first use, and so are its decoders and encoders.
"""

from __future__ import annotations

from typing import Any

from sediment.segment_io.protocol.message import message_class
from sediment.segment_io.protocol.schema import message_lines, message_schema


def __getattr__(name: str) -> Any:
    try:
        schema = message_schema(name)
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no message {name!r}", name=name, obj=__name__) from None
    return globals().setdefault(name, message_class(schema))


def __dir__() -> list[str]:
    return sorted(message_lines())
