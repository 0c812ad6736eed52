"""Options of `erase`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sediment.jobs.command_line.key_formats import TEXT
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.delta_lake.paths import is_uri
from sediment.jobs.erasing.json_path_keys import JSON_PATH
from sediment.jobs.erasing.verdict_table import REPLACE
from sediment.jobs.reporting.run_outputs import check_output_file
from sediment.jobs.rewriting.options import RewriteOptions
from sediment.jobs.spark.session import under_spark_submit
from sediment.segment_io.errors import UsageError


@dataclass(frozen=True, slots=True)
class EraseOptions(RewriteOptions):
    """Options of `erase` in addition to the common options."""

    keys_file: Path | None = None
    key_format: str = TEXT
    where: str | None = None
    verdicts: str | None = None
    action: str | None = None
    """Action on the records; None: tombstone in compacted topics, drop in others."""

    replacement: Path | None = None
    all_versions: bool = False
    tombstones_out: Path | None = None
    evidence: Path | None = None
    secret_file: Path | None = None
    signing_key: Path | None = None
    suppress_out: Path | None = None
    """Suppression list to which HMACs of the keys are added before any record changes."""

    @property
    def has_whole_keys(self) -> bool:
        """True if complete keys select the records."""
        return self.keys_file is not None and self.key_format != JSON_PATH

    def validate(self, common: CommonOptions) -> None:
        """Check that the options are compatible with each other and with the log directories of `common`.

        Raises:
            UsageError: no option or several options select records, two options exclude each other, or an output file
                would be in a log directory.
        """
        RewriteOptions.validate(self, common)
        given = [each for each in (self.keys_file, self.where, self.verdicts) if each is not None]
        if len(given) != 1:
            raise UsageError(
                "erase needs exactly one of --keys-file, --where and --verdicts",
                advice="give one of them",
            )
        for log_dir in filter(is_uri, common.named_log_dirs()):
            if not self.has_whole_keys:
                raise UsageError(
                    "--where, --verdicts and --key-format json-path read only directories of this machine",
                    path=log_dir,
                    advice="give complete keys with --keys-file, or copy the log directory to a local disk first",
                )
        if self.where is not None and not self.where.startswith("@") and under_spark_submit():
            raise UsageError(
                "Spark's event log would contain the text of --where, because it records the command line of "
                "spark-submit",
                advice="write the condition to a file, and give --where @FILE",
            )
        if (self.action == REPLACE) != (self.replacement is not None) and self.verdicts is None:
            raise UsageError("--action replace and --replacement go together", advice="give both or neither")
        outputs = (
            (self.tombstones_out, "--tombstones-out"),
            (self.evidence, "--evidence"),
            (self.suppress_out, "--suppress-out"),
        )
        output = self.local_output
        local = common.local_log_dirs()
        not_in = local if output is None else (*local, output)
        for file, option in outputs:
            if file is not None:
                check_output_file(file, option, not_in)
        if self.output is not None:
            self._check_output(self.output)
        if self.suppress_out is not None:
            self._check_suppression()
        proof = (self.evidence, self.signing_key, None if self.suppress_out is not None else self.secret_file)
        if any(proof) and not all((self.evidence, self.secret_file, self.signing_key)):
            raise UsageError(
                "--evidence, --secret-file and --signing-key go together: the evidence is signed and has HMACs",
                advice="give all three of them",
            )

    def _check_output(self, output: str) -> None:
        if self.tombstones_out is not None:
            raise UsageError(
                "--output excludes --tombstones-out: the brokers still have the records", advice="leave one of them out"
            )
        if self.evidence is not None and is_uri(output):
            raise UsageError(
                "--evidence needs a directory as --output, because the second scan reads the output",
                advice="give a local directory, and upload it afterwards",
            )

    def _check_suppression(self) -> None:
        if not self.has_whole_keys:
            raise UsageError(
                "--suppress-out lists complete keys, which --where, --verdicts and --key-format json-path do not give",
                advice="give complete keys with --keys-file, or leave out --suppress-out",
            )
        if self.action == REPLACE:
            raise UsageError(
                "--suppress-out is for keys that must have no value, and --action replace writes a new value",
                advice="leave out one of them",
            )
        if self.secret_file is None:
            raise UsageError("--suppress-out needs --secret-file for its HMACs", advice="give --secret-file")
