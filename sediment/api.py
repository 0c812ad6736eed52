"""The public interface: `LogDirectories`, with a method for each command on logs, and functions on what runs left.

Names, types, defaults and effects of the keywords are stable.  Every call returns a result and prints nothing; warnings
and progress go to the loggers under `sediment`.  Errors are `SedimentError` and its subclasses.  A failed partition
does not raise an error: look at `failed`, or call `raise_for_status()`.
"""

# A signature here is for editors and type checkers; the declaration of the command has the texts of its options, which
# `help` shows.  Each method reads its keywords from locals().

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar, cast

from sediment.jobs.command_line.calls import (
    call,
    call_plainly,
    call_until_stopped,
    checked_session,
    log_dirs_of,
)
from sediment.jobs.command_line.configured_command import ConfiguredCommand
from sediment.jobs.command_line.declaration import NoOptions
from sediment.jobs.command_line.python_terms import check_call, nearest_advice, with_option_help
from sediment.jobs.command_line.shared_options import GivenOptions
from sediment.segment_io.errors import UsageError

if TYPE_CHECKING:
    from typing import Unpack

    from pyspark.sql import SparkSession

    from sediment.jobs.adopting.report import AdoptionRunReport
    from sediment.jobs.cloning.check import CopyCheckReport
    from sediment.jobs.cloning.report import CloneRunReport
    from sediment.jobs.doctor import DoctorReport
    from sediment.jobs.dumping.table_dump import TableDump
    from sediment.jobs.erasing.check_evidence import CheckReport
    from sediment.jobs.erasing.report import EraseRunReport
    from sediment.jobs.expiring.report import ExpiryRunReport
    from sediment.jobs.history import HistoryReport
    from sediment.jobs.originals import OriginalsRunReport
    from sediment.jobs.planning.report import PlanReport
    from sediment.jobs.recovering.report import RecoveryRunReport
    from sediment.jobs.reencode import ReencodeRunReport
    from sediment.jobs.reporting.run_report import CompactionRunReport, RunReport
    from sediment.jobs.restoring.report import RestoreRunReport
    from sediment.jobs.snapshotting.report import SnapshotReport
    from sediment.jobs.vacuum import VacuumRunReport
    from sediment.jobs.verifying.report import VerificationReport

    _Report = TypeVar("_Report", bound=RunReport[Any])

Path: TypeAlias = str | os.PathLike[str]
Paths: TypeAlias = Path | Sequence[Path]
Texts: TypeAlias = str | Sequence[str]
Settings: TypeAlias = Mapping[str, object] | Sequence[str]

_F = TypeVar("_F", bound=Callable[..., Any])


class SharedOptions(TypedDict, total=False):
    """The options that all calls on log directories share."""

    partitions: Texts
    topics: Texts
    allow_empty_selection: bool
    settings: Settings
    config: Paths
    metadata: Path | None
    topic_configs: Paths
    broker_configs: Paths
    broker_defaults: bool
    fail_on_unknown: bool
    now_ms: int | None
    master: str | None
    ledger: Path | None
    report: Path | None
    metrics: Path | None
    spark: SparkSession | None


class _Method:
    """A method whose call is checked, and whose docstring gets the texts of its options when it is first looked up."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = _checked(function, {name: _OF_ALL.format(name=name) for name in SharedOptions.__annotations__})
        self._is_described = False

    def __get__(self, instance: object | None, owner: type) -> Any:
        if not self._is_described:
            self._is_described = True
            self._function.__doc__ = _with_options(self._function)
        return self._function if instance is None else MethodType(self._function, instance)


_OF_ALL = "give it to LogDirectories(), or call with_options({name}=…)"


def _method(function: _F) -> _F:
    return cast(_F, _Method(function))


def _function(function: _F) -> _F:
    checked = _checked(function, {})
    checked.__doc__ = _with_options(checked)
    return cast(_F, checked)


def _checked(function: Callable[..., Any], elsewhere: Mapping[str, str]) -> Callable[..., Any]:
    @functools.wraps(function)
    def checked(*given: Any, **keywords: Any) -> Any:
        check_call(function, given, keywords, elsewhere)
        return function(*given, **keywords)

    return checked


def _with_options(function: Callable[..., Any]) -> str:
    """Return the docstring of a call, with the texts of its options, if a command has its name."""
    name = f"sediment.jobs.{function.__name__}"
    if importlib.util.find_spec(name) is None:
        return inspect.cleandoc(function.__doc__ or "")
    command = importlib.import_module(name).command
    return with_option_help(function.__doc__, inspect.signature(function).parameters, [command.own])


class LogDirectories:
    """Log directories, and the options that all calls on them share.

        logs = sediment.LogDirectories("/var/lib/kafka-logs", config="server.properties")
        logs.compact(force=True).raise_for_status()

    A log directory is an entry of a broker's `log.dirs`, as a path or URI; without any, the calls work on those that
    `config` names.  Each call reads the directories again.  `spark` is a running session, which a call uses and never
    stops; without it, a call uses the active SparkContext, or starts one on `master` and stops it.
    """

    def __init__(self, *log_dirs: Path, **options: Unpack[SharedOptions]) -> None:
        for each in log_dirs:
            if not isinstance(each, str | os.PathLike):
                raise UsageError(
                    f"LogDirectories() takes paths, not {type(each).__name__}",
                    advice="give each directory as an argument of its own: LogDirectories(*paths)",
                )
        for name in options:
            if name not in SharedOptions.__annotations__:
                advice = nearest_advice(name, SharedOptions.__annotations__)
                raise UsageError(f"LogDirectories() has no option {name!r}", advice=advice)
        self.log_dirs = log_dirs
        self._shared: Mapping[str, Any] = options

    def with_options(self, **options: Unpack[SharedOptions]) -> LogDirectories:
        """Return the same directories with these shared options in place of their former values."""
        return LogDirectories(*self.log_dirs, **{**self._shared, **options})

    def __repr__(self) -> str:
        return f"LogDirectories({', '.join(repr(os.fspath(each)) for each in self.log_dirs)})"

    def _keywords(self, own: Mapping[str, Any]) -> dict[str, Any]:
        return {"log_dirs": self.log_dirs, **self._shared, **own}

    def _run(self, command: ConfiguredCommand, run: Callable[..., _Report], keywords: Mapping[str, Any]) -> _Report:
        return call(command.name or "", command.own, run, self._keywords(keywords))

    def _run_until_stopped(
        self, command: ConfiguredCommand, run: Callable[..., _Report], keywords: Mapping[str, Any]
    ) -> _Report:
        return call_until_stopped(command.name or "", command.own, run, self._keywords(keywords))

    @_method
    def plan(
        self,
        *,
        exact: bool = False,
        force: bool = False,
        from_start: bool = False,
        drop_keyless: bool = False,
        key_equality: Literal["hash", "exact"] = "hash",
        codec: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None = None,
        level: int | None = None,
        batch_bytes: int | None = None,
        originals: Path | None = None,
    ) -> PlanReport:
        """Explain what compaction and retention would do now; write nothing.

        Raises:
            UsageError: a directory, a setting or an option is wrong.
        """
        keywords = locals()
        from sediment.jobs import plan as job

        return self._run(job.command, job.plan, keywords)

    @_method
    def compact(
        self,
        *,
        force: bool = False,
        dry_run: bool = False,
        from_start: bool = False,
        strategy: Literal["auto", "whole", "split"] = "auto",
        key_equality: Literal["hash", "exact"] = "hash",
        codec: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None = None,
        level: int | None = None,
        batch_bytes: int | None = None,
        on_corruption: Literal["fail", "keep"] = "fail",
        drop_keyless: bool = False,
        retry_quarantined: bool = False,
        roll_active: bool = False,
        keep_originals: Path | None = None,
        keep_before: Path | None = None,
        max_bytes: int | None = None,
        max_seconds: float | None = None,
        hand_off: Path | None = None,
        output: Path | None = None,
        scratch: Path | None = None,
        allow_network_fs: bool = False,
    ) -> CompactionRunReport:
        """Compact the partitions whose `cleanup.policy` includes `compact`.

        On Ctrl-C, the call finishes the current group of segments, commits it and releases the locks.

        Raises:
            UsageError: a directory, a setting or an option is wrong; nothing was changed.
            DirectoryInUseError: a broker or another run uses a directory.
            RunStopped: Ctrl-C interrupted the run; the error's `report` lists every partition, finished or not.
        """
        keywords = locals()
        from sediment.jobs import compact as job

        return self._run_until_stopped(job.command, job.compact, keywords)

    @_method
    def erase(
        self,
        *,
        keys_file: Path | None = None,
        key_format: Literal["text", "hex", "base64"] = "text",
        where: str | None = None,
        verdicts: Path | None = None,
        action: Literal["drop", "tombstone", "replace"] | None = None,
        replacement: Path | None = None,
        all_versions: bool = False,
        tombstones_out: Path | None = None,
        suppress_out: Path | None = None,
        evidence: Path | None = None,
        secret_file: Path | None = None,
        signing_key: Path | None = None,
        dry_run: bool = False,
        keep_originals: Path | None = None,
        output: Path | None = None,
        allow_network_fs: bool = False,
    ) -> EraseRunReport:
        """Erase records; the brokers must be stopped.

        The call never asks for confirmation.  On Ctrl-C, it finishes the current group of segments, commits it and
        releases the locks.

        Raises:
            UsageError: a directory, a setting or an option is wrong; nothing was changed.
            DirectoryInUseError: a broker or another run uses a directory.
            SedimentError: the broker did not stop cleanly; nothing was changed.
            RunStopped: Ctrl-C interrupted the run; the error's `report` lists every partition, finished or not.
        """
        keywords = locals()
        from sediment.jobs import erase as job

        return self._run_until_stopped(job.command, job.erase, keywords)

    @_method
    def check_evidence(self, evidence: Path, *, public_key: Path) -> CheckReport:
        """Check the signature of the evidence that `erase` wrote, and compare the log directories with it.

        `public_key` is the public Ed25519 key in PEM.  Without log directories, only the evidence itself is checked.

        Raises:
            UsageError: the file or the key cannot be read, or a directory is not in the evidence.
        """
        from sediment.jobs import erase as job
        from sediment.jobs.erasing.options import EvidenceCheck

        checked = EvidenceCheck(pathlib.Path(evidence), pathlib.Path(public_key))
        return call(
            "erase", NoOptions, lambda options, _: job.check(options, checked), self._keywords({}), needs_log_dir=False
        )

    @_method
    def expire(
        self,
        *,
        dry_run: bool = False,
        archive: Path | None = None,
        keep_originals: Path | None = None,
        allow_network_fs: bool = False,
    ) -> ExpiryRunReport:
        """Delete segments that are past their retention limits.

        The call never asks for confirmation, and uses Spark only for `archive`.  On Ctrl-C, it finishes the partitions
        in progress and releases the locks.

        Raises:
            UsageError: a directory, a setting or an option is wrong; nothing was changed.
            DirectoryInUseError: a broker or another run uses a directory.
            RunStopped: Ctrl-C interrupted the run; the error's `report` lists every partition, finished or not.
        """
        keywords = locals()
        from sediment.jobs import expire as job

        return self._run_until_stopped(job.command, job.expire, keywords)

    @_method
    def verify(
        self,
        before: Path,
        *,
        since_ms: int | None = None,
        reencoded: bool = False,
    ) -> VerificationReport:
        """Check that the directory is a correct compaction of `before`, by rules that are independent of the cleaner.

        The object must have one directory; this and `before` may also be directories of one partition.

        Raises:
            UsageError: the directories cannot be compared, or an option is wrong.
            SourceChangedError: a directory changed while it was read.
        """
        keywords = locals()
        from sediment.jobs import verify as job

        if len(self.log_dirs) != 1:
            raise UsageError(
                f"verify() compares one log directory with `before`, and {len(self.log_dirs)} are given",
                advice="make LogDirectories(directory) for each of them",
            )
        return self._run(job.command, job.verify, {**keywords, "log_dirs": (before, *self.log_dirs)})

    @_method
    def adopt(
        self,
        *,
        node_id: int | None = None,
        cluster_id: str | None = None,
        listen: str | None = None,
        server_properties: Path | None = None,
        abort_open_transactions: bool = False,
        dry_run: bool = False,
    ) -> AdoptionRunReport:
        """Turn the partition folders that belong to no cluster into topics of a node, in place.

        Ctrl-C ends the run after the partition in progress; the next run continues.

        Raises:
            UsageError: the directory belongs to a cluster with other voters, a folder clashes with a topic of the
                cluster, or an option is wrong; nothing was changed.
            DirectoryInUseError: a process uses the directory; nothing was changed.
        """
        keywords = locals()
        from sediment.jobs import adopt as job

        return self._run_until_stopped(job.command, job.adopt, keywords)

    @_method
    def clone(
        self,
        *,
        to: Path,
        renames: Mapping[str, str] | Texts = (),
        parts: Texts = "configs,groups,transactions",
        node_id: int = 1,
        cluster_id: str | None = None,
        hold: bool = True,
        until_offsets: Texts = (),
        until_ms: int | None = None,
        abort_open_transactions: bool = False,
        link: Literal["copy", "reflink", "hard"] = "copy",
        local_only: bool = False,
        since: str | None = None,
        strategy: Literal["auto", "whole", "split"] = "auto",
        compact: bool = False,
        codec: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None = None,
        level: int | None = None,
        batch_bytes: int | None = None,
        suppress: Path | None = None,
        secret_file: Path | None = None,
        target_version: Literal["4.0", "4.1", "4.2", "4.3", "4.4"] = "4.2",
        listen: str | None = None,
        server_properties: Path | None = None,
    ) -> CloneRunReport:
        """Clone into the directory `to`, on which a stock broker can start as a single node.

        The directories must be those of stopped brokers of one cluster, or copies of them; they are only read.

        Ctrl-C ends the run; the clone is then incomplete, and the next run starts over.

        Raises:
            UsageError: an option is wrong, or the target is not empty; nothing was changed.
            DirectoryInUseError: a process uses a source or the target.
        """
        keywords = locals()
        from sediment.jobs import clone as job

        return self._run_until_stopped(job.command, job.clone, keywords)

    @_method
    def check_clone(self) -> CopyCheckReport:
        """Compare every file of the log directory, which `clone` made, with the checksums in its manifest.

        Raises:
            UsageError: the object has not one directory, or the directory has no manifest.
            CorruptDataError: the manifest cannot be read.
        """
        from sediment.jobs.cloning.check import check_clone

        if len(self.log_dirs) != 1:
            raise UsageError(
                f"check_clone() checks one clone, and {len(self.log_dirs)} directories are given",
                advice="make LogDirectories(clone) for each of them",
            )
        where = os.fspath(self.log_dirs[0])
        keywords = {**self._keywords({}), "log_dirs": ()}
        return call("clone", NoOptions, lambda options, _: check_clone(options, where), keywords, needs_log_dir=False)

    @_method
    def recover(
        self,
        *,
        dry_run: bool = False,
        threads: int | None = None,
        keep_originals: Path | None = None,
        abort_open_transactions: bool = False,
        without_undo: bool = False,
    ) -> RecoveryRunReport:
        """Load every partition as a broker does at its start, and repair it, without Spark.

        On Ctrl-C, the call finishes the partitions in progress and releases the locks.

        Raises:
            UsageError: a directory, a setting or an option is wrong; nothing was changed.
            DirectoryInUseError: a broker or another run uses a directory.
            RunStopped: Ctrl-C interrupted the run; the error's `report` lists every partition, finished or not.
        """
        keywords = locals()
        from sediment.jobs import recover as job

        return self._run_until_stopped(job.command, job.recover, keywords)

    @_method
    def reencode(
        self,
        *,
        codec: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None = None,
        level: int | None = None,
        batch_bytes: int | None = None,
        dry_run: bool = False,
        keep_originals: Path | None = None,
        output: Path | None = None,
        allow_network_fs: bool = False,
    ) -> ReencodeRunReport:
        """Change the codec or batch size; consumers see the same records as before.

        On Ctrl-C, the call finishes the partition in progress and releases the locks.

        Raises:
            UsageError: a directory, a setting or an option is wrong; nothing was changed.
            UncleanDirectoryError: the broker did not stop cleanly; nothing was changed.
            DirectoryInUseError: a broker or another run uses a directory.
            RunStopped: Ctrl-C interrupted the run; the error's `report` lists every partition, finished or not.
        """
        keywords = locals()
        from sediment.jobs import reencode as job

        return self._run_until_stopped(job.command, job.reencode, keywords)

    @_method
    def restore(
        self,
        *,
        originals: Path,
        run: str | None = None,
        as_of: str | int | None = None,
        undo_erasure: bool = False,
        suppress: Path | None = None,
        secret_file: Path | None = None,
        dry_run: bool = False,
        allow_network_fs: bool = False,
    ) -> RestoreRunReport:
        """Restore the state that partitions had before one run, or before all runs since a time, without Spark.

        The call never asks for confirmation.  On Ctrl-C, it finishes the partition in progress and releases the locks.

        Raises:
            UsageError: a directory, a run or an option is wrong; nothing was changed.
            DirectoryInUseError: a broker or another run uses a directory; a restore and a vacuum are runs too.
            RunStopped: Ctrl-C interrupted the run; the error's `report` lists every partition, finished or not.
        """
        keywords = locals()
        from sediment.jobs import restore as job

        return self._run_until_stopped(job.command, job.restore, keywords)

    @_method
    def snapshot(
        self,
        *,
        to: Path,
        as_of_offset: Texts = (),
        as_of_ms: int | None = None,
        from_start: bool = False,
        enable_deletion_vectors: bool = False,
    ) -> SnapshotReport:
        """Write the latest value of each key to a Delta table; later runs refresh it incrementally.

        Raises:
            UsageError: a directory or an option is wrong, or Delta is missing; nothing was changed.
            SourceChangedError: the logs changed repeatedly while they were read.
        """
        keywords = locals()
        from sediment.jobs import snapshot as job

        return self._run(job.command, job.snapshot, keywords)

    @_method
    def doctor(self) -> DoctorReport:
        """Check this machine and the log directories for problems before a run; change nothing.

        Without log directories, and without `config`, only the machine is checked.  Spark is not started.
        """
        from sediment.jobs import doctor as job

        return call_plainly(job.DoctorOptions, job.doctor, {"log_dirs": self.log_dirs, **self._shared})

    @_method
    def dump(
        self,
        *,
        what: str | None = None,
        offsets: str | None = None,
        timestamps_ms: str | None = None,
        last: int | None = None,
        key: Texts = (),
        key_format: Literal["text", "hex", "base64"] = "text",
        header: Texts = (),
        columns: Texts | None = None,
        replicas: Literal["best", "all"] | None = None,
        as_topic: Literal[
            "__cluster_metadata",
            "__consumer_offsets",
            "__remote_log_metadata",
            "__share_group_state",
            "__transaction_state",
        ]
        | None = None,
        keys: bool = False,
        isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
        on_corruption: Literal["fail", "skip", "rows"] = "fail",
        limit: int | None = None,
        to: Path | None = None,
    ) -> TableDump:
        """Return the contents of segments, or of the files beside them, as a table that reads them again at each use.

        The paths of the object may also be directories of partitions, files of segments, or globs of them.

        Raises:
            UsageError: an option is wrong, or `to` exists.
            SedimentError: a file cannot be read.
        """
        keywords = locals()
        from sediment.jobs import dump as job

        if self._shared.get("topics"):
            raise UsageError("dump() selects no topics", advice="give partitions='TOPIC-*'")
        shared = dict(self._shared)
        if what != "topics":
            shared.pop("config", None)
        return call_plainly(
            job.DumpArguments,
            lambda own: job.dump(own, checked_session(shared.get("spark"))),
            {**shared, **keywords, "paths": self.log_dirs or log_dirs_of(self._shared.get("config", ()))},
        )


LogDirectories.__doc__ = with_option_help(LogDirectories.__doc__, SharedOptions.__annotations__, [GivenOptions])


@_function
def originals(
    path: Path,
    *,
    now_ms: int | None = None,
) -> OriginalsRunReport:
    """List the runs that kept originals in a directory, and show which can be undone.

    Raises:
        UsageError: `path` is not a directory.
        CorruptDataError: a catalogue or the list of pins is malformed.
    """
    keywords = locals()
    from sediment.jobs import originals as job

    return call_plainly(job.OriginalsOptions, job.originals, keywords)


@_function
def vacuum(
    path: Path,
    *,
    older_than: str | None = None,
    run: str | None = None,
    pin: str | None = None,
    unpin: str | None = None,
    dry_run: bool = False,
    force: bool = False,
    now_ms: int | None = None,
) -> VacuumRunReport:
    """Remove the originals of old runs without asking; those runs can then no longer be undone.

    Raises:
        UsageError: the directory, a run, a pin or an option is wrong; nothing was changed.
        CorruptDataError: a catalogue or the list of pins is malformed; nothing was changed.
        DirectoryInUseError: a restore or another vacuum uses the directory.
    """
    keywords = locals()
    from sediment.jobs import vacuum as job

    return call_plainly(job.VacuumOptions, job.vacuum, keywords)


@_function
def history(
    ledger: Path,
    *,
    run: str | None = None,
    partitions: Texts = (),
    last: int = 20,
    replay: Paths = (),
) -> HistoryReport:
    """Return the runs in a ledger, newest first.

    Raises:
        UsageError: the ledger or the run does not exist.
        SedimentError: the ledger cannot be read.
    """
    keywords = locals()
    from sediment.jobs import history as job

    return call_plainly(job.HistoryOptions, job.history, keywords)
