"""Random logs cleaned by Kafka round by round: the log directory before and after each round, and the settings.

Another cleaner gets a copy of `before` with the same settings and must produce the files of `after`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.cases import Case
from tests.conformance.logs import continued
from tests.conformance.oracle import CleanAttempt, KafkaOracle

PARTITION = "random-0"


@dataclass(frozen=True, slots=True)
class CleanedRound:
    """One round.  `before` and `after` are log directories that hold `PARTITION`.

    `before` has the checkpoint files of a broker that was shut down: cleaner checkpoint (`first_dirty_offset`, None for
    none), log start, high watermark, recovery point, clean marker.  Those of `after` are the same: only the partition
    is Kafka's result.  After a round with an error no more follow.
    """

    before: Path
    after: Path
    now_ms: int
    configs: dict[str, str]
    first_dirty_offset: int | None
    log_start_offset: int
    high_watermark: int
    map_bytes: int | None
    load_factor: float | None
    producer_id_expiration_ms: int | None
    attempt: CleanAttempt
    strategy: str


def cleaned_rounds(oracle: KafkaOracle, case: Case, directory: Path) -> Iterator[CleanedRound]:
    """Write the log of a case below `directory` and clean it round by round."""
    spec = case["spec"]
    state = oracle.generate(spec, directory / "written" / PARTITION)
    current = directory / "written"
    end_offset: int | None = None
    for number, given in enumerate(case["rounds"], 1):
        before, after = directory / f"before-{number}", directory / f"after-{number}"
        shutil.copytree(current / PARTITION, before / PARTITION)
        log_start_offset = state.log_start_offset
        if given["more"]:
            more = continued(given["more"], log_end_offset=state.log_end_offset, part=number)
            state = oracle.generate(more, before / PARTITION, log_start_offset=log_start_offset)
        first_dirty_offset = end_offset if given["from_checkpoint"] else None
        if given["dirty_share"] is not None:
            first_dirty_offset = int(state.log_end_offset * given["dirty_share"])
        high_watermark = state.log_end_offset
        if given["high_watermark_share"] is not None:
            high_watermark = max(log_start_offset, int(high_watermark * given["high_watermark_share"]))
        state = oracle.generate(
            {"steps": [], "configs": spec["configs"], "start_ms": given["now_ms"]},
            before / PARTITION,
            log_start_offset=log_start_offset,
            checkpoints=True,
            first_dirty_offset=first_dirty_offset,
            high_watermark=high_watermark,
        )
        shutil.copytree(before, after)
        configs = {**spec["configs"], **given["configs"]}
        attempt = oracle.clean(
            after / PARTITION,
            now_ms=given["now_ms"],
            configs=configs,
            first_dirty_offset=first_dirty_offset,
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
            map_bytes=given["map_bytes"],
            load_factor=given["load_factor"],
            producer_id_expiration_ms=given["producer_id_expiration_ms"],
        )
        yield CleanedRound(
            before=before,
            after=after,
            now_ms=given["now_ms"],
            configs=configs,
            first_dirty_offset=first_dirty_offset,
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
            map_bytes=given["map_bytes"],
            load_factor=given["load_factor"],
            producer_id_expiration_ms=given["producer_id_expiration_ms"],
            attempt=attempt,
            strategy=given["strategy"],
        )
        if attempt.error:
            return
        end_offset = attempt.cleaned.end_offset if attempt.cleaned else end_offset
        current = after
