"""`sediment setup warm-up`: compile kernels and archive Spark's classes once, so that later runs start fast."""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import time

import click

from sediment.jobs.command_line.configured_command import ConfiguredCommand
from sediment.jobs.command_line.exit_status import errors_as_exit_status
from sediment.jobs.process.standard_output import write_result
from sediment.jobs.process.stderr_log import show_waiting_warnings
from sediment.jobs.spark.cds_archive import make_archive
from sediment.segment_io.errors import UsageError


@click.command("warm-up", cls=ConfiguredCommand)
def command() -> None:
    """Compile Sediment's inner loops (kernels), and archive the Java classes that Spark loads at its start.

    The compiled kernels and the archive are stored in your cache folder.  Run this command again after an update of
    Sediment, Spark or Java.
    """
    from sediment.compaction.warm_up import warm_up
    from sediment.server.live.warm_up import warm_up_appends
    from sediment.verification.warm_up import warm_up_verification

    with errors_as_exit_status():
        started = time.monotonic()
        warm_up(everything=True)
        warm_up_verification()
        warm_up_appends()
        show_waiting_warnings()
        write_result(f"compiled kernels are ready ({time.monotonic() - started:.1f} s)\n")
        started = time.monotonic()
        try:
            path = make_archive()
        except OSError as error:
            raise UsageError(
                f"the archive of Spark's classes cannot be made: {error}",
                advice="make the cache folder writable, or ignore this error, which only makes runs start more slowly",
            ) from error
        write_result(f"Spark's classes are archived in {path} ({time.monotonic() - started:.1f} s)\n")


if __name__ == "__main__":
    command()
