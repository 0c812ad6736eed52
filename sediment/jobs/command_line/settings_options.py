"""Options that name the files with the settings of nodes; every command that reads such files declares them here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

_FILE = click.Path(path_type=Path, dir_okay=False)

topic_configs_option = click.option(
    "--topic-configs",
    multiple=True,
    metavar="FILE",
    type=_FILE,
    help="Read the configs of the topics from FILE, which has the output of kafka-configs.sh --describe --entity-type "
    "topics; for a broker of ZooKeeper.  A topic that is not in FILE stays unchanged.",
)

broker_configs_option = click.option(
    "--broker-configs",
    multiple=True,
    metavar="FILE",
    type=_FILE,
    help="Read the dynamic configs of the brokers from FILE, which has the output of kafka-configs.sh --describe "
    "--entity-type brokers.",
)


def config_option(text: str) -> Callable[[_Command], _Command]:
    """Return the option `--config` of a command that works on one node or on several; its help is `text`."""
    return click.option("--config", "configs", multiple=True, type=_FILE, help=text)
