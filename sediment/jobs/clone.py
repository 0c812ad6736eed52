"""`sediment clone SOURCE... --to DIR`: make a log directory that a stock broker can start on as a node.

The sources are directories of stopped brokers of one cluster, or copies of such directories.  A source may be a URI.
Sources are only read.  The module `cloning.run` makes the clone; `cloning.check` implements `clone --check DIR`, which
compares a clone with its manifest.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import threading
from pathlib import Path

import click

from sediment.engine.clone.features import NEWEST_RELEASE, RELEASES
from sediment.engine.clone.options import DEFAULT_NODE_ID, DEFAULT_PARTS, CloneOptions, LinkMode
from sediment.jobs.cleaning.options import AUTO, STRATEGIES, parse_strategy
from sediment.jobs.cloning.check import CopyCheckReport, check_clone, print_check
from sediment.jobs.cloning.options import (
    DEFAULT_LISTEN,
    check_cluster_id,
    parse_listen,
    parse_parts,
    parse_renames,
    parse_until_offsets,
    properties_file_options,
)
from sediment.jobs.cloning.report import COLUMNS, CloneRunReport, print_report
from sediment.jobs.cloning.run import CloneRequest
from sediment.jobs.cloning.run import clone as clone_directories
from sediment.jobs.command_line.configured_command import ConfiguredCommand
from sediment.jobs.command_line.options import CommonOptions, common_options, screen_options
from sediment.jobs.erasing.suppression_file import read_suppression_list
from sediment.jobs.process.cancellation import stop_on_signals
from sediment.jobs.rewriting.options import encoding_options, parse_optional_encoding
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.layout import INT32_MAX, INT64_MAX


def perform(
    options: CommonOptions,
    *,
    to: Path | None,
    renames: tuple[str, ...] = (),
    with_parts: str = ",".join(sorted(DEFAULT_PARTS)),
    node_id: int = DEFAULT_NODE_ID,
    cluster_id: str | None = None,
    hold: bool = True,
    until_offsets: tuple[str, ...] = (),
    until_ms: int | None = None,
    link: str = LinkMode.COPY.value,
    abort_open_transactions: bool = False,
    local_only: bool = False,
    since: str | None = None,
    strategy: str = AUTO,
    compact: bool = False,
    codec: str | None = None,
    level: int | None = None,
    batch_bytes: int | None = None,
    suppress: Path | None = None,
    secret_file: Path | None = None,
    target_version: str = NEWEST_RELEASE,
    listen: str | None = None,
    properties_file: Path | None = None,
    checked: str | None = None,
    stop: threading.Event | None = None,
) -> CloneRunReport | CopyCheckReport:
    """Check the options; then make a clone, or check the existing clone in `checked`.

    Raises:
        UsageError: an option is wrong; nothing was changed.
    """
    if checked is not None:
        return check_clone(options, checked, stop=stop)
    if to is None:
        raise UsageError("no target is given", advice="give --to DIR")
    if to.parts[:1] and to.parts[0].endswith(":"):
        raise UsageError(
            "clone writes to a local disk only", path=str(to), advice="give a local path, and upload the result"
        )
    if (suppress is None) != (secret_file is None):
        raise UsageError("--suppress and --secret-file go together", advice="give both or neither")
    suppressed = None
    if suppress is not None and secret_file is not None:
        suppressed = read_suppression_list(suppress, secret_file)
    encoding = parse_optional_encoding(codec, level, batch_bytes)
    if encoding is not None and not compact:
        raise UsageError(
            "--codec, --level and --batch-bytes need --compact, which writes the records again",
            advice="give --compact, or run `sediment reencode` on the clone",
        )
    endpoint = DEFAULT_LISTEN if listen is None else parse_listen(listen)
    own = CloneOptions(
        topics=options.selection.topics,
        partitions=options.selection.partitions,
        renames=parse_renames(renames),
        parts=parse_parts(with_parts),
        node_id=node_id,
        cluster_id=None if cluster_id is None else check_cluster_id(cluster_id),
        hold=hold,
        until_offsets=parse_until_offsets(until_offsets),
        until_ms=until_ms,
        abort_open_transactions=abort_open_transactions,
        link=LinkMode(link),
        local_only=local_only,
        since=since,
        strategy=parse_strategy(strategy),
        compact=compact,
        encoding=encoding,
        suppressed=suppressed,
    )
    request = CloneRequest(to.absolute(), endpoint.host, endpoint.port, target_version, properties_file)
    return clone_directories(options, own, request, stop=stop)


@click.command("clone", cls=ConfiguredCommand)
@common_options
@screen_options(COLUMNS)
@click.option("--to", metavar="DIR", type=click.Path(path_type=Path), help="Write the clone to this new directory.")
@click.option("--rename", "renames", multiple=True, metavar="OLD=NEW", help="Rename a topic in the clone.")
@click.option(
    "--with",
    "with_parts",
    metavar="PARTS",
    default=",".join(sorted(DEFAULT_PARTS)),
    show_default=True,
    help="Also clone these parts of the cluster (a comma-separated list): groups, transactions, configs, acls, quotas, "
    "scram.",
)
@click.option(
    "--node-id",
    type=click.IntRange(0, INT32_MAX),
    default=DEFAULT_NODE_ID,
    show_default=True,
    help="Use this node id for the clone.",
)
@click.option("--cluster-id", metavar="ID", help="Use this cluster id for the clone (default: a new one).")
@click.option(
    "--hold/--no-hold",
    default=True,
    show_default=True,
    help="Change topic configs so that nothing in the clone expires or is cleaned until you restore the configs.",
)
@click.option(
    "--until-offset",
    "until_offsets",
    multiple=True,
    metavar="TOPIC-N:OFFSET",
    help="Leave out the records of this partition at and above OFFSET.",
)
@click.option(
    "--until-ms",
    type=click.IntRange(0, INT64_MAX - 1),
    metavar="MS",
    help="Cut every log of the clone before its first record with a timestamp after MS, in ms since the epoch.",
)
@click.option(
    "--abort-open-transactions",
    is_flag=True,
    help="End open transactions with markers: COMMIT if the coordinator had already decided to commit, else ABORT.",
)
@click.option(
    "--link",
    type=click.Choice([mode.value for mode in LinkMode]),
    default=LinkMode.COPY.value,
    is_flag=False,
    flag_value=LinkMode.REFLINK.value,
    help="copy (default): copy all files.  reflink (also --link without a value): share disk blocks with the source "
    "if the filesystem supports it, else copy.  hard: hard-link every segment except the active ones; while both the "
    "source and the clone exist, never start a broker on either of them.",
)
@click.option(
    "--since",
    metavar="MANIFEST",
    help="Do not copy unchanged segments; link them from the earlier clone whose sediment-manifest.json is MANIFEST.  "
    "The earlier clone is not modified.",
)
@click.option(
    "--strategy",
    type=click.Choice(STRATEGIES),
    default=AUTO,
    show_default=True,
    help="whole: one task copies a partition.  split: many tasks copy the files of a partition, and one more task "
    "finishes the partition.  auto: choose for each partition, by its size and the number of task slots.",
)
@click.option(
    "--compact",
    is_flag=True,
    help="After cloning, compact the partitions of the clone whose cleanup.policy includes compact, as the command "
    "`compact` does.",
)
@encoding_options
@click.option(
    "--suppress",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Leave out every record whose key is on the suppression list FILE, which `erase --suppress-out` wrote.",
)
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="With --suppress: read from this file the secret that `erase --suppress-out` used.",
)
@click.option(
    "--local-only", is_flag=True, help="Accept topics with tiered storage, and clone only their local segments."
)
@click.option(
    "--target-version",
    type=click.Choice(RELEASES),
    default=NEWEST_RELEASE,
    show_default=True,
    help="Lower each Kafka feature of the clone to its level in this release of Kafka, unless it is already lower.",
)
@properties_file_options
@click.option(
    "--check",
    "checked",
    metavar="DIR",
    help="Clone nothing; compare every file of the clone in DIR with the checksums in its sediment-manifest.json.",
)
def command(
    options: CommonOptions,
    to: Path | None,
    renames: tuple[str, ...],
    with_parts: str,
    node_id: int,
    cluster_id: str | None,
    hold: bool,
    until_offsets: tuple[str, ...],
    until_ms: int | None,
    abort_open_transactions: bool,
    link: str,
    since: str | None,
    strategy: str,
    compact: bool,
    codec: str | None,
    level: int | None,
    batch_bytes: int | None,
    suppress: Path | None,
    secret_file: Path | None,
    local_only: bool,
    target_version: str,
    listen: str | None,
    properties_file: Path | None,
    checked: str | None,
) -> None:
    """Clone LOG_DIR... into a directory on which a stock Kafka broker can start as a single node.

    Each LOG_DIR is the path or URI of a stopped broker's log directory, or of a copy of such a directory.  All LOG_DIRs
    must belong to one cluster; they are only read.  SIGINT or SIGTERM ends the run; the next run starts over.

    --codec, --level and --batch-bytes apply to the batches that --compact writes.  With --check, give no LOG_DIR;
    nothing is changed and no lock is taken.
    """
    with stop_on_signals() as stop:
        report = perform(
            options,
            to=to,
            renames=renames,
            with_parts=with_parts,
            node_id=node_id,
            cluster_id=cluster_id,
            hold=hold,
            until_offsets=until_offsets,
            until_ms=until_ms,
            abort_open_transactions=abort_open_transactions,
            link=link,
            local_only=local_only,
            since=since,
            strategy=strategy,
            compact=compact,
            codec=codec,
            level=level,
            batch_bytes=batch_bytes,
            suppress=suppress,
            secret_file=secret_file,
            target_version=target_version,
            listen=listen,
            properties_file=properties_file,
            checked=checked,
            stop=stop,
        )
    if isinstance(report, CopyCheckReport):
        options.conclude(report, print_check)
    options.conclude(report, print_report)


if __name__ == "__main__":
    command()
