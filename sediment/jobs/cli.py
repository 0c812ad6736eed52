"""Command line `sediment NAME …`: each command is a module of this package, loaded on first use."""

from __future__ import annotations

import sys

if __name__ == "__main__" or sys.argv[0].endswith("/sediment"):
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import gc
import importlib
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from sediment.jobs.command_line.configured_command import VERBOSE_OPTION, nearest_name
from sediment.jobs.command_line.examples import epilog
from sediment.jobs.process.cancellation import RunStopped, end_on_signals
from sediment.jobs.process.standard_output import help_in_one_sentence_if_not_printed, occupy_standard_descriptors
from sediment.jobs.process.stderr_log import is_verbose
from sediment.jobs.process.unnamed_user import give_home
from sediment.version import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# A run makes many objects and few reference cycles; at Python's default threshold of 700, garbage collection takes a
# tenth of the time of `plan`.
_COLLECT_AFTER_OBJECTS = 50_000

COMMANDS = {
    "adopt": (
        "sediment.jobs.adopt",
        "Turn partition folders that belong to no cluster into topics of a node, in place.",
    ),
    "clone": ("sediment.jobs.clone", "Make a log directory that a stock broker can start on as a single node."),
    "compact": ("sediment.jobs.compact", "Compact partitions whose cleanup.policy includes compact."),
    "completion": ("sediment.jobs.completion", "Print the completion script for bash, zsh or fish."),
    "delta-jars": ("sediment.jobs.delta_jars", "Fetch the JARs for Delta tables, once per machine."),
    "doctor": ("sediment.jobs.doctor", "Check this machine and log directories for problems before a run."),
    "dump": ("sediment.jobs.dump", "Show the contents of segments and of their indexes and checkpoints."),
    "erase": ("sediment.jobs.erase", "Erase records from any log, and write signed evidence of the erasure."),
    "expire": ("sediment.jobs.expire", "Delete segments past their retention limits."),
    "history": ("sediment.jobs.history", "Show the runs that --ledger recorded."),
    "originals": (
        "sediment.jobs.originals",
        "List the runs that kept their replaced files, and show which can be undone.",
    ),
    "plan": ("sediment.jobs.plan", "Explain what compaction and retention would do now."),
    "restore": ("sediment.jobs.restore", "Put partitions back to their state before a run with --keep-originals."),
    "serve": ("sediment.jobs.serve", "Let Kafka clients use a log directory, without a broker."),
    "snapshot": ("sediment.jobs.snapshot", "Keep the latest value of each key in a Delta table."),
    "reencode": ("sediment.jobs.reencode", "Change the codec or batch size of logs without changing their records."),
    "recover": ("sediment.jobs.recover", "Load partitions as a broker does at its start, and repair them."),
    "vacuum": (
        "sediment.jobs.vacuum",
        "Remove the files that --keep-originals kept for old runs; those runs can then no longer be undone.",
    ),
    "warm-up": (
        "sediment.jobs.warm_up",
        "Compile Sediment's inner loops and archive Spark's Java classes, so that the first run starts fast.",
    ),
    "verify": ("sediment.jobs.verify", "Check that one directory is a correct compaction of another."),
}


@contextmanager
def _one_line_if_stopped() -> Iterator[None]:
    """Report, in one line, a signal that arrived before the command started; click would print a message of its own."""
    try:
        yield
    except RunStopped as stopped:
        click.echo("sediment: the run was stopped before it started", err=True)
        raise SystemExit(1) from stopped


class _Commands(click.Group):
    """Group that loads a command's module only when the command is used, so help and completion start fast."""

    def main(self, args: Sequence[str] | None = None, *positional: Any, **given: Any) -> Any:
        """Run the command line `args`; by default, run the arguments of this process and then exit."""
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

    def make_context(self, *given: Any, **more: Any) -> click.Context:
        """Read the command line."""
        with _one_line_if_stopped():
            return super().make_context(*given, **more)

    def invoke(self, context: click.Context) -> Any:
        """Load the command and run it."""
        with _one_line_if_stopped():
            return super().invoke(context)

    def get_params(self, context: click.Context) -> list[click.Parameter]:
        """Return the parameters of the group, including `--verbose`."""
        return [*super().get_params(context), VERBOSE_OPTION]

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names, and the other arguments."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not context.resilient_parsing:
            nearest = nearest_name(name, {each: each for each in COMMANDS})
            context.fail(f"No such command {name!r}.{f' Did you mean {nearest!r}?' if nearest else ''}")
        return super().resolve_command(context, args)

    def list_commands(self, _context: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[name][0]).command
        command.epilog = command.epilog or epilog(name)
        return command

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, context, incomplete)
        return [
            CompletionItem(name, help=text)
            for name, (_, text) in sorted(COMMANDS.items())
            if name.startswith(incomplete)
        ]

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in sorted(COMMANDS.items())])


def _print_version(context: click.Context, _option: click.Parameter, is_wanted: bool) -> None:
    """Print the version and exit; with -v, also print the versions of Java and of the packages that a run uses."""
    if not is_wanted or context.resilient_parsing:
        return
    click.echo(f"sediment, version {__version__}")
    if is_verbose():
        from sediment.jobs.diagnostics.versions import versions

        for name, release in versions():
            click.echo(f"{name} {release}")
    context.exit()


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, expose_value=False, callback=_print_version, help="Show the version and exit.")
def main() -> None:
    """Compact, expire, repair and explain Kafka log directories on Spark, without a broker."""


if __name__ == "__main__":
    main()
