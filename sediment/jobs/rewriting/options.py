"""Options of the commands that rewrite segments, in place or to an output."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sediment.engine.directory.originals.kept_in import KeptIn, kept_in
from sediment.jobs.command_line.declaration import ONE_COMMAND, Directory, option
from sediment.jobs.command_line.shared_options import allow_network_fs_option, keep_originals_option
from sediment.jobs.delta_lake.paths import is_uri, local_directory
from sediment.jobs.reporting.run_outputs import check_output_file
from sediment.segment_io.errors import UsageError

if TYPE_CHECKING:
    from sediment.jobs.command_line.options import CommonOptions


@dataclass(frozen=True, slots=True)
class RewriteOptions:
    dry_run: bool = option(False, "Change nothing; report what would change.", from_settings=ONE_COMMAND)
    keep_originals: Directory | None = keep_originals_option()
    output: str | None = option(
        None,
        "Write a complete log directory to DIR_OR_URI and leave LOG_DIR unchanged.",
        metavar="DIR_OR_URI",
        from_settings=ONE_COMMAND,
    )
    allow_network_fs: bool = allow_network_fs_option()

    @property
    def local_output(self) -> Path | None:
        path = None if self.output is None else local_directory(self.output)
        return None if path is None else Path(path).absolute()

    def kept_in(self, common: CommonOptions) -> KeptIn | None:
        return kept_in(self.keep_originals, common.log_dirs, shares=True)

    def validate(self, common: CommonOptions) -> None:
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
