"""`sediment setup NAME`: the commands that only prepare a machine."""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

from sediment.jobs.command_line.command_group import CommandGroup

COMMANDS = {
    "warm-up": (
        "sediment.jobs.warm_up",
        "Compile Sediment's inner loops and archive Spark's Java classes, so that the first run starts fast.",
    ),
    "delta-jars": ("sediment.jobs.delta_jars", "Fetch the JARs for Delta tables, once per machine."),
    "completion": ("sediment.jobs.completion", "Print the completion script for bash, zsh or fish."),
}

command = CommandGroup("setup", sections={"Commands": COMMANDS}, help="Prepare this machine for Sediment.")

if __name__ == "__main__":
    command()
