"""OpenLineage events of the runs that write a Delta table: `snapshot`, and the archive of `expire`.

    START       before the first record is read: topics and table
    COMPLETE    after the table has the records: counts of records, and the version of the table if it is known
    FAIL        if the run or a partition failed: also the reason codes
    ABORT       if a signal ended the run

A topic of a log directory is the dataset `LOG_DIR/TOPIC` in the namespace of the filesystem; the table is a dataset at
its own path.

Invariants: without a destination nothing is sent, and the package openlineage-python is not loaded.  The option alone
determines the destination.  Only the API key comes from the environment, and nothing comes from the working directory.
An event contains names, counts and reason codes, but no key, value or header, no error text, and no credentials of a
URI.  If an event cannot be sent, a warning is logged.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from sediment.jobs.delta_lake.paths import local_directory
from sediment.jobs.process.cancellation import was_stopped
from sediment.jobs.reporting.error_text import error_text_of, first_line
from sediment.jobs.reporting.statuses import STOPPED
from sediment.segment_io.errors import UsageError
from sediment.segment_io.extras import install_command
from sediment.segment_io.uris import public_uri, without_credentials
from sediment.version import __version__

if TYPE_CHECKING:
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.transport import Transport

API_KEY_VARIABLE = "OPENLINEAGE_API_KEY"
NAMESPACE = "sediment"

_TIMEOUT_SECONDS = 5.0
_RETRIES = 1
_WITH_ROOT = ("hdfs", "viewfs")
_ADVICE = "give the URL of an OpenLineage server, or a YAML file with a `transport`, as in openlineage.yml"

_LOGGER = logging.getLogger(__name__)

State = Literal["START", "COMPLETE", "FAIL", "ABORT"]
LogTopic = tuple[Path, str]
"""A topic in a log directory."""


@dataclass(frozen=True, slots=True)
class TableWrite:
    """Result of a run.

    `records_read` counts records by topic, and `rows_written` counts rows of the table; `version` is the version of the
    table.  None means unknown.  `failures` are the reason codes of the partitions that failed.
    """

    run_id: str
    records_read: Mapping[LogTopic, int]
    rows_written: int | None = None
    version: int | None = None
    failures: tuple[str, ...] = ()


def check(destination: str | None) -> None:
    """Check that events can be sent to `destination`; send nothing.

    Raises:
        UsageError: OpenLineage's library is missing, or the destination cannot be used.
    """
    if destination is not None:
        _open_transport(destination).close(0)


@contextmanager
def lineage_events(
    destination: str | None, command: str, topics: Iterable[LogTopic], table: str
) -> Iterator[Callable[[TableWrite], None]]:
    """Send START, run the body, and send the event that ends the run.

    The body passes its result to the yielded function.

    Raises:
        UsageError: as in `check`; the body did not run.
    """
    if destination is None:
        yield lambda _written: None
        return
    run = _LineageRun(_open_transport(destination), command, tuple(dict.fromkeys(topics)), table)
    results: list[TableWrite] = []
    try:
        run.send("START")
        try:
            yield results.append
        except BaseException as error:
            run.send("ABORT" if was_stopped(error) else "FAIL", failures=(error_text_of(error).reason_code,))
            raise
        for written in results:
            run.send(_state_after(written), written, written.failures)
    finally:
        run.close()


def _state_after(written: TableWrite) -> State:
    if STOPPED in written.failures:
        return "ABORT"
    return "FAIL" if written.failures else "COMPLETE"


def dataset_name(place: str) -> tuple[str, str]:
    """Return the namespace and the name that OpenLineage's naming rules prescribe for the dataset at a path or URI."""
    local = local_directory(place)
    if local is not None:
        return "file", str(Path(local).absolute())
    uri = urlsplit(public_uri(place))
    scheme = uri.scheme.replace("s3a", "s3")
    path = uri.path.rstrip("/")
    return f"{scheme}://{uri.netloc}", (path if scheme in _WITH_ROOT else path.lstrip("/")) or "/"


# ----------------------------------------------------------------------------------------------------------- transport
def _open_transport(destination: str) -> Transport:
    try:
        from openlineage.client.transport import get_default_factory
    except ImportError as error:
        raise UsageError(
            "lineage events need the Python package openlineage-python, which is missing",
            advice=install_command("lineage"),
        ) from error
    config = _of_url(destination) if destination.startswith(("http://", "https://")) else _of_file(Path(destination))
    try:
        return get_default_factory().create(config)
    except Exception as error:  # a transport may raise anything for a wrong value
        raise UsageError(
            f"lineage events cannot be sent: {without_credentials(first_line(error))}",
            path=public_uri(destination),
            advice=_ADVICE,
        ) from error


def _of_url(url: str) -> dict[str, Any]:
    key = os.environ.get(API_KEY_VARIABLE)
    auth = {"auth": {"type": "api_key", "apiKey": key}} if key else {}
    retry = {"total": _RETRIES, "connect": _RETRIES, "read": _RETRIES}
    return {"type": "http", "url": url, "timeout": _TIMEOUT_SECONDS, "retry": retry, **auth}


def _of_file(file: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        what = error.strerror if isinstance(error, OSError) else "the file is not YAML"
        raise UsageError(f"--lineage cannot be read: {what}", path=str(file), advice=_ADVICE) from error
    transport = content.get("transport") if isinstance(content, dict) else None
    if not isinstance(transport, dict) or not transport.get("type"):
        raise UsageError("--lineage names a file without a transport", path=str(file), advice=_ADVICE)
    return transport


# -------------------------------------------------------------------------------------------------------------- events
@dataclass(slots=True)
class _LineageRun:
    """A run of OpenLineage, and the transport of its events."""

    transport: Transport
    command: str
    topics: tuple[LogTopic, ...]
    table: str
    run_id: str = field(default_factory=lambda: _new_run_id())

    def send(self, state: State, written: TableWrite | None = None, failures: tuple[str, ...] = ()) -> None:
        """Send one event; if that fails, log a warning."""
        try:
            self.transport.emit(self._event(state, written, failures))
        except Exception as error:  # the library passes on the errors of its transports
            text = without_credentials(first_line(error))
            _LOGGER.warning("the OpenLineage event %s was not sent; the run goes on: %s", state, text)

    def close(self) -> None:
        """Close the transport, after waiting for events that are still being sent."""
        try:
            self.transport.close(_TIMEOUT_SECONDS)
        except Exception as error:
            _LOGGER.warning("OpenLineage events may be missing: %s", without_credentials(first_line(error)))

    def _event(self, state: State, written: TableWrite | None, failures: tuple[str, ...]) -> Any:
        from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
        from openlineage.client.facet_v2 import error_message_run, job_type_job, processing_engine_run, tags_run

        producer = f"pkg:pypi/kafka-sediment@{__version__}"
        engine = processing_engine_run.ProcessingEngineRunFacet(__version__, "sediment", producer=producer)
        facets: dict[str, Any] = {"processing_engine": engine}
        if failures:
            codes = ", ".join(sorted(set(failures)))
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(codes, "PYTHON", producer=producer)
        if written is not None:
            tag = tags_run.TagsRunFacetFields("sediment_run_id", written.run_id, "SEDIMENT")
            facets["tags"] = tags_run.TagsRunFacet([tag], producer=producer)
        kind = job_type_job.JobTypeJobFacet("BATCH", "SEDIMENT", "COMMAND", producer=producer)
        name = f"{self.command}:{dataset_name(self.table)[1]}"
        return RunEvent(
            eventType=RunState[state],
            eventTime=datetime.now(UTC).isoformat(),
            run=Run(self.run_id, facets),
            job=Job(NAMESPACE, name, {"jobType": kind}),
            inputs=[self._input(topic, written, producer) for topic in self.topics],
            outputs=[self._output(written, producer)],
            producer=producer,
        )

    def _input(self, topic: LogTopic, written: TableWrite | None, producer: str) -> InputDataset:
        from openlineage.client.event_v2 import InputDataset
        from openlineage.client.facet_v2 import input_statistics_input_dataset

        namespace, name = dataset_name(str(topic[0]))
        found = InputDataset(namespace, f"{name}/{topic[1]}")
        if written is not None:
            count = written.records_read.get(topic, 0)
            statistics = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(count, producer=producer)
            found.inputFacets = {"inputStatistics": statistics}
        return found

    def _output(self, written: TableWrite | None, producer: str) -> OutputDataset:
        from openlineage.client.event_v2 import OutputDataset
        from openlineage.client.facet_v2 import dataset_version_dataset, output_statistics_output_dataset

        found = OutputDataset(*dataset_name(self.table))
        if written is not None and written.rows_written is not None:
            statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                written.rows_written, producer=producer
            )
            found.outputFacets = {"outputStatistics": statistics}
        if written is not None and written.version is not None:
            version = dataset_version_dataset.DatasetVersionDatasetFacet(str(written.version), producer=producer)
            found.facets = {"version": version}
        return found


def _new_run_id() -> str:
    from openlineage.client.uuid import generate_new_uuid

    return str(generate_new_uuid())
