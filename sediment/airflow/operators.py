"""Operators for Airflow 3 and 2.11: each runs a command of Sediment with spark-submit and pushes a summary to XCom.

    exit status 0                        success
    exit status 1                        failure with the reasons of the partitions; retried if the task is set to retry
    exit status 2 (wrong use)            failure with the error of the command; the task is never retried
    anything else                        failure with the last error in the output; the task is retried

After every run with a report, even a failed run, XCom contains the figures of the run under the key `summary`.  The
report itself is a line of the driver's output.  In cluster mode Airflow does not see that output, so the task has no
summary.

The operators are not deferrable.  The driver is a process on the worker's host.  It must see the log directories, and
it holds their locks.  A triggerer may run on another host, where it could neither watch nor stop the driver.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, Context

from sediment.airflow.arguments import command_arguments
from sediment.airflow.outcome import OutputReader, failure_text, lines, summary

APPLICATION = str(Path(__file__).resolve().parents[1] / "jobs" / "cli.py")
"""The script that spark-submit runs; Sediment must also be installed in the Python environment of Spark's driver."""

SUMMARY = "summary"
"""XCom key of the figures of a run."""

PathText: TypeAlias = str | os.PathLike[str]
Paths: TypeAlias = PathText | Sequence[PathText]
Texts: TypeAlias = str | Sequence[str]
Settings: TypeAlias = Mapping[str, object] | Sequence[str]

_EXIT_STATUS = re.compile(r"\. Error code is: (\d+)\.")
_WRONG_USE = 2


def _keywords(values: Mapping[str, object], *others: str) -> dict[str, object]:
    """Return the options among the local variables of an `__init__`; `others` are its other parameters."""
    without = {"self", "kwargs", "__class__", *others}
    return {name: value for name, value in values.items() if name not in without}


class SedimentOperator(SparkSubmitOperator):
    """`spark-submit jobs/cli.py COMMAND LOG_DIR…`, with the options of the command as keywords, as in the Python API.

    `options` contains the options of the command; they override the common options below.  `arguments` are appended
    unchanged.  `json_report` is a file for the whole JSON report.  Other keywords are passed to `SparkSubmitOperator`:
    `conf`, `conn_id` and so on.
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        "log_dirs",
        "common_options",
        "options",
        "arguments",
        "json_report",
    )
    template_fields_renderers = {"common_options": "json", "options": "json"}  # noqa: RUF012 - Airflow declares it in this way
    ui_color = "#e8dcc4"

    def __init__(
        self,
        *,
        command: str,
        log_dirs: Paths = (),
        options: Mapping[str, object] | None = None,
        arguments: Sequence[str] = (),
        json_report: PathText | None = None,
        partitions: Texts = (),
        topics: Texts = (),
        allow_empty_selection: bool = False,
        settings: Settings = (),
        config: Paths = (),
        metadata: PathText | None = None,
        topic_configs: Paths = (),
        broker_configs: Paths = (),
        broker_defaults: bool = False,
        fail_on_unknown: bool = False,
        now_ms: int | str | None = None,
        ledger: PathText | None = None,
        report: PathText | None = None,
        metrics: PathText | None = None,
        application: str = APPLICATION,
        **kwargs: Any,
    ) -> None:
        common = _keywords(locals(), "command", "log_dirs", "options", "arguments", "json_report", "application")
        super().__init__(application=application, **{"name": f"sediment {command}", **kwargs})
        self.command = command
        self.log_dirs = log_dirs
        self.common_options = common
        self.options = options or {}
        self.arguments = arguments
        self.json_report = json_report
        self._output = OutputReader()

    def execute(self, context: Context) -> None:
        """Run the command, push its summary, and raise an error with the reasons if it failed.

        Raises:
            AirflowFailException: the command was used wrongly; the task is not retried.
            AirflowException: the command failed.
        """
        options = {**self.common_options, **self.options}
        self.application_args = [
            *command_arguments(self.command, self.log_dirs, options),
            *self.arguments,
            "--json",
            "--log-format=json",
        ]
        self._output = OutputReader()
        code = self._submit(context)
        summed = self._record(context, options)
        if code == 0:
            return
        text = failure_text(summed, self._output.errors, code)
        if code == _WRONG_USE:
            raise AirflowFailException(f"wrong use or settings: {text}")
        raise AirflowException(text)

    def _submit(self, context: Context) -> int:
        self._hook = None  # the parent then creates a hook that uses the reader of this run
        try:
            super().execute(context)
        except AirflowException as error:
            # The error text ends with the last lines of the output, which are already in the log.
            found = _EXIT_STATUS.search(str(error))
            if found is None:
                raise
            return int(found[1])
        return 0

    def _get_hook(self) -> Any:
        """Return the parent's hook; replace the hook's private method so that the reader gets the output lines."""
        hook = super()._get_hook()
        log, output = hook._process_spark_submit_log, self._output
        hook._process_spark_submit_log = lambda lines: log(output.other_lines(lines))
        return hook

    def _record(self, context: Context, options: Mapping[str, object]) -> dict[str, Any] | None:
        """Log the report, write it to `json_report`, and push its summary; return the summary, or None."""
        output = self._output
        if output.report is None:
            self.log.warning("The output has no report of %s.", self.command)
            return None
        for line in lines(output.report):
            self.log.info(line)
        if self.json_report:
            unfinished = Path(f"{self.json_report}.tmp")
            unfinished.write_text(f"{output.report_text}\n", encoding="utf-8")
            unfinished.replace(self.json_report)
        summed = summary(
            output.report,
            fail_on_unknown=bool(options["fail_on_unknown"]),
            outputs={
                "report": options["report"],
                "metrics": options["metrics"],
                "ledger": options["ledger"],
                "json_report": self.json_report,
            },
        )
        context["ti"].xcom_push(key=SUMMARY, value=summed)
        return summed


class SedimentPlanOperator(SedimentOperator):
    """`sediment plan`: explain what compaction and retention would do now, and write nothing."""

    def __init__(
        self,
        *,
        exact: bool = False,
        force: bool = False,
        from_start: bool = False,
        drop_keyless: bool = False,
        key_equality: Literal["hash", "exact"] = "hash",
        codec: str | None = None,
        level: int | None = None,
        batch_bytes: int | None = None,
        originals: PathText | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(command="plan", options=_keywords(locals()), **kwargs)


class SedimentCompactOperator(SedimentOperator):
    """`sediment compact`: compact the partitions whose `cleanup.policy` includes `compact`."""

    def __init__(
        self,
        *,
        force: bool = False,
        dry_run: bool = False,
        from_start: bool = False,
        strategy: Literal["auto", "whole", "split"] = "auto",
        key_equality: Literal["hash", "exact"] = "hash",
        codec: str | None = None,
        level: int | None = None,
        batch_bytes: int | None = None,
        on_corruption: Literal["fail", "keep"] = "fail",
        drop_keyless: bool = False,
        retry_quarantined: bool = False,
        roll_active: bool = False,
        keep_originals: PathText | None = None,
        keep_before: PathText | None = None,
        max_bytes: int | None = None,
        max_seconds: float | None = None,
        hand_off: PathText | None = None,
        output: PathText | None = None,
        scratch: PathText | None = None,
        allow_network_fs: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(command="compact", options=_keywords(locals()), **kwargs)


class SedimentVerifyOperator(SedimentOperator):
    """`sediment verify BEFORE AFTER`: check that AFTER is a correct compaction of BEFORE."""

    def __init__(
        self,
        *,
        before: PathText,
        after: PathText,
        since_ms: int | None = None,
        reencoded: bool = False,
        **kwargs: Any,
    ) -> None:
        options = _keywords(locals(), "before", "after")
        super().__init__(command="verify", log_dirs=[before, after], options=options, **kwargs)


class SedimentExpireOperator(SedimentOperator):
    """`sediment expire --yes`: delete the segments that are past their retention limits; ask for no confirmation."""

    def __init__(
        self,
        *,
        dry_run: bool = False,
        archive: PathText | None = None,
        keep_originals: PathText | None = None,
        allow_network_fs: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(command="expire", options={"yes": True, **_keywords(locals())}, **kwargs)
