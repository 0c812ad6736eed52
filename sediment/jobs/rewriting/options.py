"""Options of the commands that rewrite segments, in place or to an output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sediment.compaction.reencode.plan import Encoding
from sediment.engine.directory.originals.kept_in import KeptIn, kept_in
from sediment.jobs.command_line.units import ByteSize
from sediment.jobs.delta_lake.paths import is_uri, local_directory
from sediment.jobs.reporting.run_outputs import check_output_file
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.layout import CODEC_NAMES

if TYPE_CHECKING:
    from sediment.jobs.command_line.options import CommonOptions

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class RewriteOptions:
    """Options of all rewriting commands, in addition to the common options; a subclass adds those of one command."""

    dry_run: bool = False
    keep_originals: Path | None = None
    """Directory, or pattern with `{log_dir}`, that first receives links to the replaced files."""

    allow_network_fs: bool = False
    output: str | None = None
    """Path or URI of a complete new log directory, to which the result is written; the source stays unchanged."""

    @property
    def local_output(self) -> Path | None:
        """Directory of the output; None without an output, or if the output is not on this machine."""
        path = None if self.output is None else local_directory(self.output)
        return None if path is None else Path(path).absolute()

    def kept_in(self, common: CommonOptions) -> KeptIn | None:
        """Return where the replaced files of each log directory are kept; None without --keep-originals."""
        return kept_in(self.keep_originals, common.log_dirs, shares=True)

    def validate(self, common: CommonOptions) -> None:
        """Check that the options are compatible with the log directories of `common`.

        Raises:
            UsageError: a log directory is a URI, or two options exclude each other.
        """
        if self.output is not None and self.keep_originals is not None:
            raise UsageError(
                "--output excludes --keep-originals: the source keeps them", advice="leave one of them out"
            )
        if (output := self.local_output) is not None:
            for option, file in (("--report", common.report_file), ("--metrics", common.metrics_file)):
                if file is not None:
                    check_output_file(file, option, (output,))
        for log_dir in filter(is_uri, common.given_log_dirs):
            if self.output is None:
                raise UsageError("a URI source is read-only", path=log_dir, advice="give --output a destination")


def encoding_options(command: _Command) -> _Command:
    """Add the options that name the encoding of batches: codec, level and batch_bytes."""
    decorated: Any = command
    for option in reversed(
        (
            click.option(
                "--codec",
                type=click.Choice(CODEC_NAMES),
                help="Compress batches with this codec.  Default: keep the codec of each batch.",
            ),
            click.option(
                "--level",
                type=int,
                metavar="N",
                help="Compress at this level: gzip from 1 to 9, lz4 from 1 to 17, zstd from -131072 to 22.  Default: "
                "Kafka's level for --codec.",
            ),
            click.option(
                "--batch-bytes",
                type=ByteSize(),
                metavar="N",
                help="Merge neighbouring batches into batches of at most N uncompressed bytes, such as 64k.  Default: "
                "merge no batches.",
            ),
        )
    ):
        decorated = option(decorated)
    result: _Command = decorated
    return result


def parse_encoding(codec: str | None, level: int | None, batch_bytes: int | None) -> Encoding:
    """Return the encoding that --codec, --level and --batch-bytes request.

    Raises:
        UsageError: no change is requested, or the values contradict each other.
    """
    return Encoding(None if codec is None else CODEC_NAMES.index(codec), level, batch_bytes)


def parse_optional_encoding(codec: str | None, level: int | None, batch_bytes: int | None) -> Encoding | None:
    """Return the encoding that --codec, --level and --batch-bytes request; None if none of these options is given.

    Raises:
        UsageError: the values contradict each other.
    """
    if all(each is None for each in (codec, level, batch_bytes)):
        return None
    return parse_encoding(codec, level, batch_bytes)


def rewrite_options(command: _Command) -> _Command:
    """Add the options of `RewriteOptions` to a command."""
    decorated: Any = command
    for option in reversed(
        (
            click.option("--dry-run", is_flag=True, help="Change nothing; report what would change."),
            click.option(
                "--keep-originals",
                type=click.Path(path_type=Path, file_okay=False),
                metavar="DIR",
                help="Before files are replaced, hard-link them into DIR (on the same filesystem) and list them there "
                "in a catalogue, so that `restore` can undo the run.  {log_dir} in DIR stands for each log directory.",
            ),
            click.option(
                "--output",
                metavar="DIR_OR_URI",
                help="Write a complete log directory to DIR_OR_URI and leave LOG_DIR unchanged.",
            ),
            click.option(
                "--allow-network-fs",
                is_flag=True,
                help="Allow NFS and other network filesystems; make sure no other host uses the directory.",
            ),
        )
    ):
        decorated = option(decorated)
    result: _Command = decorated
    return result
