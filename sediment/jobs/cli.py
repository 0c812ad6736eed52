"""Command line `sediment NAME …`: each command is a module of this package, loaded on first use."""

from __future__ import annotations

import sys

if __name__ == "__main__" or sys.argv[0].endswith("/sediment"):
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import gc
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from sediment.jobs.command_line.command_group import CommandGroup, Commands
from sediment.jobs.command_line.configured_command import VERBOSE_OPTION
from sediment.jobs.process.cancellation import RunStopped, end_on_signals
from sediment.jobs.process.standard_output import help_in_one_sentence_if_not_printed, occupy_standard_descriptors
from sediment.jobs.process.stderr_log import is_verbose
from sediment.jobs.process.unnamed_user import give_home
from sediment.version import __version__

# A run makes many objects and few reference cycles; at Python's default threshold of 700, garbage collection takes a
# tenth of the time of `plan`.
_COLLECT_AFTER_OBJECTS = 50_000

SECTIONS: Mapping[str, Commands] = {
    "Look": {
        "plan": ("sediment.jobs.plan", "Explain what compaction and retention would do now."),
        "dump": ("sediment.jobs.dump", "Show the contents of segments and of their indexes and checkpoints."),
        "verify": ("sediment.jobs.verify", "Check that one directory is a correct compaction of another."),
        "doctor": ("sediment.jobs.doctor", "Check this machine and log directories for problems before a run."),
        "history": ("sediment.jobs.history", "Show the runs that --ledger recorded."),
    },
    "Clean and repair": {
        "compact": ("sediment.jobs.compact", "Compact partitions whose cleanup.policy includes compact."),
        "expire": ("sediment.jobs.expire", "Delete segments past their retention limits."),
        "erase": ("sediment.jobs.erase", "Erase records from any log, and write signed evidence of the erasure."),
        "reencode": (
            "sediment.jobs.reencode",
            "Change the codec or batch size of logs without changing their records.",
        ),
        "recover": ("sediment.jobs.recover", "Load partitions as a broker does at its start, and repair them."),
    },
    "Undo": {
        "originals": (
            "sediment.jobs.originals",
            "List the runs that kept their replaced files, and show which can be undone.",
        ),
        "restore": ("sediment.jobs.restore", "Put partitions back to their state before a run with --keep-originals."),
        "vacuum": (
            "sediment.jobs.vacuum",
            "Remove the files that --keep-originals kept for old runs; those runs can then no longer be undone.",
        ),
    },
    "Move": {
        "clone": (
            "sediment.jobs.clone",
            "Make a log directory that a stock broker can start on as a single node.",
        ),
        "adopt": (
            "sediment.jobs.adopt",
            "Turn partition folders that belong to no cluster into topics of a node, in place.",
        ),
        "snapshot": ("sediment.jobs.snapshot", "Keep the latest value of each key in a Delta table."),
    },
    "Serve": {
        "serve": ("sediment.jobs.serve", "Let Kafka clients use a log directory, without a broker."),
    },
    "Set up": {
        "demo": ("sediment.jobs.demo", "Write a small log directory, and show plan, compact and verify on it."),
        "setup": ("sediment.jobs.setup", "Compile loops, fetch the JARs for Delta tables, or complete in the shell."),
    },
}
COMMANDS = {name: each for commands in SECTIONS.values() for name, each in commands.items()}
_WRONG_USE = 2
_OF_SETUP = ("warm-up", "delta-jars", "completion")  # they were commands of their own


@contextmanager
def _one_line_if_stopped() -> Iterator[None]:
    """Report, in one line, a signal that arrived before the command started; click would print a message of its own."""
    try:
        yield
    except RunStopped as stopped:
        click.echo("sediment: the run was stopped before it started", err=True)
        raise SystemExit(1) from stopped


class _Commands(CommandGroup):
    def main(self, args: Sequence[str] | None = None, *positional: Any, **given: Any) -> Any:
        if args is None:
            occupy_standard_descriptors()
            give_home()
            gc.set_threshold(_COLLECT_AFTER_OBJECTS)
        try:
            with end_on_signals(), _one_line_if_stopped(), help_in_one_sentence_if_not_printed():
                return super().main(args, *positional, **given)
        finally:
            if args is None:
                # Otherwise the interpreter would print a traceback after a late Ctrl-C.
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, signal.SIG_DFL)
                gc.freeze()  # otherwise the interpreter would look for garbage among all objects before it ends

    def make_context(self, *given: Any, **more: Any) -> click.Context:
        with _one_line_if_stopped():
            return super().make_context(*given, **more)

    def invoke(self, context: click.Context) -> Any:
        with _one_line_if_stopped():
            return super().invoke(context)

    def get_params(self, context: click.Context) -> list[click.Parameter]:
        return [*super().get_params(context), VERBOSE_OPTION]

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in _OF_SETUP and not context.resilient_parsing:
            click.echo(f"sediment: {args[0]} is a command of setup; run: sediment setup {args[0]}", err=True)
            raise SystemExit(_WRONG_USE)
        return super().resolve_command(context, args)


def _print_version(context: click.Context, _option: click.Parameter, is_wanted: bool) -> None:
    if not is_wanted or context.resilient_parsing:
        return
    click.echo(f"sediment, version {__version__}")
    if is_verbose():
        from sediment.jobs.diagnostics.versions import versions

        for name, release in versions():
            click.echo(f"{name} {release}")
    context.exit()


@click.command(cls=_Commands, sections=SECTIONS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, expose_value=False, callback=_print_version, help="Show the version and exit.")
def main() -> None:
    """Compact, expire, repair and explain Kafka log directories on Spark, without a broker."""


if __name__ == "__main__":
    main()
