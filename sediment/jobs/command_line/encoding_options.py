"""Options that name the encoding of batches; executors import this module, so it imports little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sediment.compaction.reencode.plan import Encoding
from sediment.jobs.command_line.declaration import ONE_COMMAND, ByteSize, Values, option
from sediment.segment_io.format.layout import CODEC_NAMES

Codec = Annotated[str, Values(choices=tuple(CODEC_NAMES))]


@dataclass(frozen=True, slots=True)
class EncodingOptions:
    codec: Codec | None = option(
        None, "Compress batches with this codec.  Default: keep the codec of each batch.", from_settings=ONE_COMMAND
    )
    level: int | None = option(
        None,
        "Compress at this level: gzip from 1 to 9, lz4 from 1 to 17, zstd from -131072 to 22.  Default: Kafka's level "
        "for --codec.",
        metavar="N",
        from_settings=ONE_COMMAND,
    )
    batch_bytes: ByteSize | None = option(
        None,
        "Merge neighbouring batches into batches of at most N uncompressed bytes, such as 64k.  Default: merge no "
        "batches.",
        from_settings=ONE_COMMAND,
    )

    def value(self) -> Encoding | None:
        if self.codec is None and self.level is None and self.batch_bytes is None:
            return None
        return Encoding(None if self.codec is None else CODEC_NAMES.index(self.codec), self.level, self.batch_bytes)
