"""`sediment plan LOG_DIR …`: explain what compaction and retention would do with each partition now.

1. The driver lists and selects the partitions (`planning.driver`).
2. Tasks view each partition, apply the rules, and take a sample (`planning.task`).
3. With --exact, tasks also clean the partitions in memory.

Invariants: nothing is written and no lock is taken.  After reading a partition, or cleaning it in memory for --exact, a
task checks that its segments are still the listed segments.  The rule that blocks a partition also provides the
explanation.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace

from sediment.compaction.reencode.plan import Encoding
from sediment.compaction.strategy import KeyEquality
from sediment.engine.directory.originals.history import read_history
from sediment.engine.directory.originals.retained import bytes_only_in
from sediment.jobs.cleaning.options import CompactOptions
from sediment.jobs.command_line.declaration import ONE_COMMAND, Directory, option, together
from sediment.jobs.command_line.encoding_options import EncodingOptions
from sediment.jobs.command_line.options import CommonOptions, log_command
from sediment.jobs.command_line.shared_options import key_equality_option
from sediment.jobs.planning.driver import exact_plans, plan_each, prepare
from sediment.jobs.planning.report import PartitionPlan, PlanReport
from sediment.jobs.planning.task import PlanningTask
from sediment.jobs.planning.text import COLUMNS, print_report
from sediment.jobs.reporting.run_report import in_order
from sediment.segment_io.format.names import new_run_id
from sediment.segment_io.fs import Fs


@dataclass(frozen=True, slots=True)
class PlanOptions:
    exact: bool = option(
        False,
        "Read every key, and compute the exact result of `compact` instead of an estimate.",
        from_settings=ONE_COMMAND,
    )
    force: bool = option(
        False,
        "Plan for `compact --force`, which ignores the dirty ratio and drops expired tombstones even without dirty "
        "records.",
    )
    from_start: bool = option(
        False, "Plan for `compact --from-start`, which ignores cleaner-offset-checkpoint.", from_settings=ONE_COMMAND
    )
    drop_keyless: bool = option(
        False,
        "Plan for `compact --drop-keyless`, which also cleans partitions that mostly lose records without a key.",
    )
    key_equality: KeyEquality = key_equality_option()
    encoding: Encoding | None = together(EncodingOptions)
    originals: Directory | None = option(
        None,
        "Also report how much disk space is used by the files in DIR, the --keep-originals directory of earlier runs.",
        from_settings=ONE_COMMAND,
    )

    def of_compact(self) -> CompactOptions:
        return CompactOptions(
            force=self.force,
            dry_run=True,
            from_start=self.from_start,
            drop_keyless=self.drop_keyless,
            key_equality=self.key_equality,
        )


def plan(options: CommonOptions, own: PlanOptions) -> PlanReport:
    encoding = own.encoding
    history = None if own.originals is None else read_history(own.originals, Fs())
    started = time.monotonic()
    run_id = new_run_id()
    plans: list[PartitionPlan] = []
    with ExitStack() as stack:
        tasks: list[PlanningTask] = []
        for prepared in prepare(options, own.of_compact(), run_id, is_exact=own.exact, encoding=encoding):
            if isinstance(prepared, PlanningTask):
                tasks.append(prepared)
            else:
                plans.append(prepared)
        if tasks:
            found, to_clean = plan_each(options, tasks, stack, group=run_id)
            plans += found
            if to_clean:
                plans += exact_plans(options, to_clean, stack, group=run_id)
    report = PlanReport(
        run_id=run_id,
        command="plan",
        now_ms=options.now_ms,
        seconds=time.monotonic() - started,
        partitions=in_order(plans),
        codec=None if encoding is None else encoding.codec_name,
        level=None if encoding is None else encoding.level,
        batch_bytes=None if encoding is None else encoding.batch_bytes,
    )
    if history is None or own.originals is None:
        return report
    size_bytes = bytes_only_in(history, own.originals)
    return replace(report, originals=str(own.originals.absolute()), originals_bytes=size_bytes)


@log_command("plan", PlanOptions, COLUMNS)
def command(options: CommonOptions, own: PlanOptions) -> None:
    """Explain what compaction and retention would do to LOG_DIR... now; write nothing.

    With --codec, --level or --batch-bytes, also estimate the size of each log after `reencode` with these options.
    """
    options.conclude(plan(options, own), print_report)


if __name__ == "__main__":
    # Tasks are pickled by the name of their module, and on an executor `__main__` is another module.
    from sediment.jobs.plan import command as importable

    importable()
