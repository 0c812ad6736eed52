"""Options of `erase`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from sediment.jobs.command_line.declaration import ONE_COMMAND, File, Values, option, together
from sediment.jobs.command_line.key_formats import KEY_FORMATS, TEXT
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.delta_lake.paths import is_uri
from sediment.jobs.erasing.verdict_table import ACTIONS, REPLACE
from sediment.jobs.reporting.run_outputs import check_output_file
from sediment.jobs.rewriting.options import RewriteOptions
from sediment.jobs.spark.session import under_spark_submit
from sediment.segment_io.errors import UsageError


class EvidenceCheck(NamedTuple):
    file: Path
    public_key: Path


@dataclass(frozen=True, slots=True)
class CheckOptions:
    checked: File | None = option(
        None,
        "Erase nothing; check the signature of the evidence in FILE, and compare LOG_DIR... with the evidence.",
        name="check",
        keyword="check",
    )
    public_key: File | None = option(
        None, "With --check: check the signature with this public Ed25519 key in PEM.", from_settings=ONE_COMMAND
    )

    def value(self) -> EvidenceCheck | None:
        if (self.checked is None) != (self.public_key is None):
            raise UsageError("--check and --public-key go together", advice="give both or neither")
        if self.checked is None or self.public_key is None:
            return None
        return EvidenceCheck(self.checked, self.public_key)


@dataclass(frozen=True, slots=True)
class EraseOptions(RewriteOptions):
    keys_file: File | None = option(None, "Erase every record whose key is in FILE, which has one key per line.")
    key_format: Annotated[str, Values(choices=KEY_FORMATS)] = option(
        TEXT,
        "Format of the keys in --keys-file.",
        shows_default=True,
        from_settings=ONE_COMMAND,
    )
    where: str | None = option(
        None,
        "Erase the records for which this Spark SQL condition on the table `records` is true; @FILE reads the "
        "condition from FILE.",
        metavar="SQL",
        is_secret=True,
    )
    verdicts: str | None = option(
        None,
        "Erase the records that TABLE lists (Parquet, Delta or CSV; columns topic, partition, offset, and optionally "
        "key, action and value).",
        metavar="TABLE",
    )
    action: Annotated[str, Values(choices=ACTIONS)] | None = option(
        None,
        "drop: remove the record.  tombstone: set its value to null.  replace: set its value to the bytes in "
        "--replacement.  Default: tombstone in compacted topics, drop in others.",
    )
    replacement: File | None = option(None, "With --action replace: read the bytes of the new value from FILE.")
    all_versions: bool = option(
        False, "In compacted topics, also drop the older records with the same key as a dropped record."
    )
    tombstones_out: File | None = option(
        None,
        "Write the keys that got a tombstone to FILE, so that you can later produce tombstones for these keys to the "
        "leader.",
        from_settings=ONE_COMMAND,
    )
    suppress_out: File | None = option(
        None,
        "Before erasing, add HMACs of the keys in --keys-file to the suppression list FILE, which "
        "`restore --suppress` and `clone --suppress` read.",
    )
    evidence: File | None = option(
        None,
        "After the run, scan everything again, and write signed evidence of the erasure to FILE; also write an HTML "
        "page next to FILE.",
        from_settings=ONE_COMMAND,
    )
    secret_file: File | None = option(
        None,
        "Read a secret from FILE.  --evidence and --suppress-out write keys and conditions only as HMACs under this "
        "secret.",
    )
    signing_key: File | None = option(None, "Sign the evidence with this private Ed25519 key in PEM.")
    evidence_check: EvidenceCheck | None = together(CheckOptions)
    yes: bool = option(False, "Erase without asking; required if stdin or stderr is not a terminal.", of_terminal=True)

    def validate(self, common: CommonOptions) -> None:
        RewriteOptions.validate(self, common)
        given = [each for each in (self.keys_file, self.where, self.verdicts) if each is not None]
        if len(given) != 1:
            raise UsageError(
                "erase needs exactly one of --keys-file, --where and --verdicts",
                advice="give one of them",
            )
        for log_dir in filter(is_uri, common.named_log_dirs()):
            if self.keys_file is None:
                raise UsageError(
                    "--where and --verdicts read only directories of this machine",
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
        for file, name in outputs:
            if file is not None:
                check_output_file(file, name, not_in)
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
        if self.keys_file is None:
            raise UsageError(
                "--suppress-out lists complete keys, which --where and --verdicts do not give",
                advice="give complete keys with --keys-file, or leave out --suppress-out",
            )
        if self.action == REPLACE:
            raise UsageError(
                "--suppress-out is for keys that must have no value, and --action replace writes a new value",
                advice="leave out one of them",
            )
        if self.secret_file is None:
            raise UsageError("--suppress-out needs --secret-file for its HMACs", advice="give --secret-file")
