"""`sediment clone SOURCE... --to DIR`: make a log directory that a stock broker can start on as a node.

The module `cloning.run` makes the clone; `cloning.check` implements `clone --check DIR`, which compares a clone with
its manifest.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import threading
from dataclasses import dataclass, fields
from typing import Annotated, Any

from sediment.compaction.reencode.plan import Encoding
from sediment.compaction.rewrite.suppression import SuppressionList
from sediment.compaction.strategy import Strategy
from sediment.engine.clone.features import REFERENCE_RELEASE, RELEASES
from sediment.engine.clone.options import DEFAULT_NODE_ID, DEFAULT_PARTS, CloneOptions, LinkMode, Part
from sediment.jobs.cloning.check import check_clone, print_check
from sediment.jobs.cloning.options import (
    DEFAULT_LISTEN,
    CloneRequest,
    check_cluster_id,
    listen_option,
    parse_parts,
    parse_renames,
    parse_until_offsets,
    properties_file_option,
)
from sediment.jobs.cloning.report import COLUMNS, CloneRunReport, print_report
from sediment.jobs.cloning.run import clone as clone_directories
from sediment.jobs.command_line.declaration import ONE_COMMAND, File, NodeId, Values, option, together
from sediment.jobs.command_line.encoding_options import EncodingOptions
from sediment.jobs.command_line.options import CommonOptions, log_command
from sediment.jobs.command_line.shared_options import AUTO, OutputDirectory
from sediment.jobs.erasing.suppression_file import SuppressionOptions
from sediment.jobs.process.cancellation import stop_on_signals
from sediment.jobs.settings.selection import Selection
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.server.network.endpoints import Endpoint


@dataclass(frozen=True, slots=True)
class _SuppressOptions(SuppressionOptions):
    suppress: File | None = option(
        None,
        "Leave out every record whose key is on the suppression list FILE, which `erase --suppress-out` wrote.",
    )


@dataclass(frozen=True, slots=True)
class CloneArguments:
    to: OutputDirectory | None = option(None, "Write the clone to this new directory.", from_settings=ONE_COMMAND)
    renames: tuple[str, ...] = option((), "Rename a topic in the clone.", name="rename", metavar="OLD=NEW")
    parts: frozenset[Part] = option(
        DEFAULT_PARTS,
        "Also clone these parts of the cluster (a comma-separated list): groups, transactions, configs, acls, quotas, "
        "scram.",
        name="with",
        metavar="PARTS",
        joined=True,
        parse=parse_parts,
        shows_default=True,
        from_settings=ONE_COMMAND,
    )
    node_id: NodeId = option(
        DEFAULT_NODE_ID, "Use this node id for the clone.", shows_default=True, from_settings=ONE_COMMAND
    )
    cluster_id: str | None = option(
        None,
        "Use this cluster id for the clone (default: a new one).",
        metavar="ID",
        parse=check_cluster_id,
        from_settings=ONE_COMMAND,
    )
    hold: bool = option(
        True,
        "Change topic configs so that nothing in the clone expires or is cleaned until you restore the configs.",
        off="no-hold",
        shows_default=True,
    )
    until_offsets: tuple[str, ...] = option(
        (),
        "Leave out the records of this partition at and above OFFSET.",
        name="until-offset",
        metavar="TOPIC-N:OFFSET",
    )
    until_ms: Annotated[int, Values("MS", least=0, most=INT64_MAX - 1)] | None = option(
        None,
        "Cut every log of the clone before its first record with a timestamp after MS, in ms since the epoch.",
    )
    abort_open_transactions: bool = option(
        False,
        "End open transactions with markers: COMMIT if the coordinator had already decided to commit, else ABORT.",
    )
    link: LinkMode = option(
        LinkMode.COPY,
        "copy (default): copy all files.  reflink (also --link without a value): share disk blocks with the source if "
        "the filesystem supports it, else copy.  hard: hard-link every segment except the active ones; while both the "
        "source and the clone exist, never start a broker on either of them.",
        bare=LinkMode.REFLINK.value,
    )
    since: str | None = option(
        None,
        "Do not copy unchanged segments; link them from the earlier clone whose sediment-manifest.json is MANIFEST.  "
        "The earlier clone is not modified.",
        metavar="MANIFEST",
    )
    strategy: Strategy | None = option(
        None,
        "whole: one task copies a partition.  split: many tasks copy the files of a partition, and one more task "
        "finishes the partition.  auto: choose for each partition, by its size and the number of task slots.",
        none=AUTO,
        shows_default=True,
        from_settings=ONE_COMMAND,
    )
    compact: bool = option(
        False,
        "After cloning, compact the partitions of the clone whose cleanup.policy includes compact, as the command "
        "`compact` does.",
    )
    encoding: Encoding | None = together(EncodingOptions)
    suppressed: SuppressionList | None = together(_SuppressOptions)
    local_only: bool = option(False, "Accept topics with tiered storage, and clone only their local segments.")
    target_version: Annotated[str, Values(choices=tuple(RELEASES))] = option(
        REFERENCE_RELEASE,
        "Lower each Kafka feature of the clone to its level in this release of Kafka, unless it is already lower.",
        shows_default=True,
        from_settings=ONE_COMMAND,
    )
    listen: Endpoint | None = listen_option()
    properties_file: File | None = properties_file_option()
    checked: str | None = option(
        None,
        "Clone nothing; compare every file of the clone in DIR with the checksums in its sediment-manifest.json.",
        name="check",
        keyword="check",
        metavar="DIR",
    )

    def request(self) -> CloneRequest:
        if self.to is None:
            raise UsageError("no target is given", advice="give --to DIR")
        if self.to.parts[:1] and self.to.parts[0].endswith(":"):
            raise UsageError(
                "clone writes to a local disk only",
                path=str(self.to),
                advice="give a local path, and upload the result",
            )
        if self.encoding is not None and not self.compact:
            raise UsageError(
                "--codec, --level and --batch-bytes need --compact, which writes the records again",
                advice="give --compact, or run `sediment reencode` on the clone",
            )
        endpoint = self.listen or DEFAULT_LISTEN
        return CloneRequest(self.to.absolute(), endpoint.host, endpoint.port, self.target_version, self.properties_file)

    def content(self, selection: Selection) -> CloneOptions:
        own = {each.name for each in fields(self)}
        content: dict[str, Any] = {
            each.name: getattr(self, each.name) for each in fields(CloneOptions) if each.name in own
        }
        content |= {"renames": parse_renames(self.renames), "until_offsets": parse_until_offsets(self.until_offsets)}
        return CloneOptions(topics=selection.topics, partitions=selection.partitions, **content)


def clone(options: CommonOptions, own: CloneArguments, *, stop: threading.Event | None = None) -> CloneRunReport:
    return clone_directories(options, own.content(options.selection), own.request(), stop=stop)


@log_command("clone", CloneArguments, COLUMNS)
def command(options: CommonOptions, own: CloneArguments) -> None:
    """Clone LOG_DIR... into a directory on which a stock Kafka broker can start as a single node.

    Each LOG_DIR is the path or URI of a stopped broker's log directory, or of a copy of such a directory.  All LOG_DIRs
    must belong to one cluster; they are only read.  SIGINT or SIGTERM ends the run; the next run starts over.

    --codec, --level and --batch-bytes apply to the batches that --compact writes.  With --check, give no LOG_DIR;
    nothing is changed and no lock is taken.
    """
    if own.checked is not None:
        with stop_on_signals() as stop:
            checked = check_clone(options, own.checked, stop=stop)
        options.conclude(checked, print_check)
    with stop_on_signals() as stop:
        report = clone(options, own, stop=stop)
    options.conclude(report, print_report)


if __name__ == "__main__":
    command()
