"""Options that several commands share; this module loads fast, because completion needs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from sediment.compaction.strategy import KeyEquality
from sediment.jobs.command_line.declaration import (
    ALL_COMMANDS,
    ONE_COMMAND,
    Directory,
    File,
    PathOrUri,
    TimeMs,
    Values,
    argument,
    declared_options,
    option,
)

OutputFile = Annotated[Path, Values("FILE")]
OutputDirectory = Annotated[Path, Values("DIR")]

AUTO = "auto"


# ------------------------------------------------------------------------------------------- fields of several classes
def partitions_option(text: str) -> tuple[str, ...]:
    return option((), text, name="partition", metavar="TOPIC-N", completes="partitions", is_shared=True)


def allow_empty_selection_option(text: str) -> bool:
    return option(False, text, is_shared=True)


def sets_option(
    text: str = "Override a topic or broker configuration for this run.", metavar: str = "[TOPIC:]KEY=VALUE"
) -> tuple[str, ...]:
    return option((), text, name="set", keyword="settings", metavar=metavar, is_shared=True)


def configs_option(text: str) -> tuple[Path, ...]:
    return option((), text, name="config", keyword="config", from_settings=ALL_COMMANDS)


def metadata_dir_option(
    text: str = "Read topic configs from __cluster_metadata-0 in DIR, another log directory of the same node.",
) -> Path | None:
    return option(None, text, name="metadata", keyword="metadata", from_settings=ALL_COMMANDS)


def topic_configs_option() -> tuple[Path, ...]:
    return option(
        (),
        "Read the configs of the topics from FILE, which has the output of kafka-configs.sh --describe --entity-type "
        "topics; for a broker of ZooKeeper.  A topic that is not in FILE stays unchanged.",
    )


def broker_configs_option() -> tuple[Path, ...]:
    return option(
        (),
        "Read the dynamic configs of the brokers from FILE, which has the output of kafka-configs.sh --describe "
        "--entity-type brokers.",
    )


def now_ms_option() -> int | None:
    return option(None, "Use this time, in ms since the epoch, instead of the clock.", is_shared=True)


def json_option(text: str = "Print one JSON object instead of a table.") -> bool:
    return option(False, text, name="json", from_settings=ALL_COMMANDS, of_terminal=True)


def quiet_option(text: str) -> bool:
    return option(False, text, from_settings=ALL_COMMANDS, of_terminal=True)


def master_option(text: str) -> str | None:
    return option(None, text, metavar="URL", from_settings=ALL_COMMANDS)


def metrics_file_option(text: str) -> Path | None:
    return option(None, text, name="metrics", keyword="metrics", from_settings=ALL_COMMANDS)


def log_format_option() -> Literal["text", "json"]:
    return option(
        "text",
        "Print messages on stderr as plain text, or as one JSON object per line.",
        shows_default=True,
        from_settings=ALL_COMMANDS,
        of_terminal=True,
    )


def keep_originals_option() -> Path | None:
    return option(
        None,
        "Before files are replaced, hard-link them into DIR (on the same filesystem) and list them there in a "
        "catalogue, so that `restore` can undo the run.  {log_dir} in DIR stands for each log directory.",
        from_settings=ONE_COMMAND,
    )


def allow_network_fs_option() -> bool:
    return option(False, "Allow NFS and other network filesystems; make sure no other host uses the directory.")


def key_equality_option() -> KeyEquality:
    return option(
        KeyEquality.HASH,
        "Choose how to compare two keys.  hash: by their 128-bit hashes.  exact: by their bytes, in one task that "
        "keeps all keys of a partition in memory.",
        shows_default=True,
        from_settings=ONE_COMMAND,
    )


# ----------------------------------------------------------------------------------------- commands on log directories
@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOptions:
    """Options of every command on log directories, as the caller gave them, before any file is read.

    Source: docs/reference/commands.md, Options of all commands on log directories.
    """

    given_log_dirs: tuple[PathOrUri, ...] = argument("LOG_DIR...", keyword="log_dirs")
    """Log directories as the user gave them, because a `Path` does not preserve a URI."""

    partitions: tuple[str, ...] = partitions_option(
        "Select partitions by name or glob.  A pattern that matches nothing is an error."
    )
    topics: tuple[str, ...] = option(
        (),
        "Select topics by name or glob.  If --partition is also given, a partition must match both options.",
        name="topic",
        metavar="GLOB",
        is_shared=True,
    )
    allow_empty_selection: bool = allow_empty_selection_option(
        "Do not fail if a --partition or --topic matches nothing; meant for scheduled jobs."
    )
    sets: tuple[str, ...] = sets_option()
    configs: tuple[File, ...] = configs_option(
        "Read settings from FILE, the broker's server.properties.  If no LOG_DIR is given, work on every directory in "
        "its log.dirs.  Give the option once for each broker."
    )
    metadata_dir: Directory | None = metadata_dir_option()
    topic_configs: tuple[File, ...] = topic_configs_option()
    broker_configs: tuple[File, ...] = broker_configs_option()
    broker_defaults: bool = option(
        False,
        "Use Kafka's default for every setting that neither --set nor --config nor the cluster metadata gives, even if "
        "this default deletes data.",
        is_shared=True,
    )
    fail_on_unknown: bool = option(
        False,
        "Exit with status 1 if a result depends on a setting that neither --set nor --config nor the cluster metadata "
        "gives.",
        from_settings=ALL_COMMANDS,
    )
    now_ms: TimeMs | None = now_ms_option()
    as_json: bool = json_option()
    json_lines: bool = option(
        False,
        "Like --json, but print one line for the run, then one line for each partition; each line is a JSON object.",
        from_settings=ALL_COMMANDS,
        of_terminal=True,
    )
    master: str | None = master_option("Use this Spark master (default: the master of spark-submit, or local[*]).")
    quiet: bool = quiet_option("Print no progress and no warnings.")
    ledger: str | None = option(
        None,
        "Record this run in the ledger at PATH, which consists of two Delta tables; create them if necessary.",
        metavar="PATH",
        from_settings=ALL_COMMANDS,
    )
    report_file: OutputFile | None = option(
        None, "Write an HTML report of this run to FILE.", name="report", keyword="report", from_settings=ALL_COMMANDS
    )
    metrics_file: OutputFile | None = metrics_file_option(
        "Write Prometheus metrics of this run to FILE, for the node exporter's textfile collector."
    )
    log_format: Literal["text", "json"] = log_format_option()


FOR_ALL_COMMANDS = frozenset(
    each.name for each in declared_options(GivenOptions) if each.option.from_settings == ALL_COMMANDS
)
"""Options that a settings file and the environment can set once for all commands."""
