"""Airflow DAG of the nightly run: plan; compact, verify and expire each log directory; one report.

                    ┌─ directory, once for each log directory ──────┐
    plan ───────────│  compact ──> verify ──> expire                │──────────> report
                    │                └──────> forget_before         │
                    └───────────────────────────────────────────────┘

`compact` first links the files that it changes into a directory beside the log directory.  `verify` compares them with
the result.  If every changed partition is a correct compaction, `expire` deletes segments, and the links are removed.
Otherwise the links stay.  A partition that `compact` leaves alone with an error does not prevent retention in its
directory.  If `compact` cannot work on a directory at all, the later tasks skip it.  Directories are independent of
each other; `report` fails if any task failed.

`plan` fails before any other task if a directory of a KRaft node has no `__cluster_metadata-0` and no parameter gives
its settings, or if a pattern of `partitions` matches nothing in any directory.  `report` lists the partitions that were
left alone because of an unstated setting.

The DAG needs Airflow 3, or 2.11, with the Spark provider.  Parameters come from the run, else from the Airflow variable
`sediment`, a JSON object of the same names (docs/operate/airflow.md).  The commands run by the operators of
`sediment.airflow`, which Airflow's environment needs; the rest of Sediment is only in the environment of Spark.
"""

from __future__ import annotations

import difflib
import fnmatch
import html
import inspect
import logging
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import (
    DAG,
    AirflowFailException,
    AirflowSkipException,
    Asset,
    AssetAlias,
    Context,
    Param,
    TriggerRule,
    Variable,
    task,
    task_group,
)

from sediment.airflow.operators import APPLICATION, SUMMARY, SedimentOperator
from sediment.jobs.reporting.html_template import stylesheet

VARIABLE = "sediment"
POOL = os.environ.get("SEDIMENT_POOL", "sediment")
SCHEDULE = os.environ.get("SEDIMENT_SCHEDULE", "0 2 * * *")
RETRY_DELAY = timedelta(seconds=float(os.environ.get("SEDIMENT_RETRY_SECONDS", "300")))

COMPACTED = AssetAlias("sediment-compacted")
"""Log directories that a run changed and `verify` found correct, each as the asset `file://<directory>`."""

# Airflow 2 wants a date, calls the default of a variable otherwise, and hashes the values in the extra of an event.
_BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
_IS_AIRFLOW_2 = "default_var" in inspect.signature(Variable.get).parameters
_DEFAULT = "default_var" if _IS_AIRFLOW_2 else "default"

_KEPT = ".sediment-before"  # `compact --keep-before` writes it to mark a directory that it created
_METADATA = "__cluster_metadata-0"
_PARTITION = re.compile(r".+-[0-9]+")
_NODE_ID = re.compile(r"^\s*node\.id\s*[=:]", re.MULTILINE)
_FILES = ("config", "metadata", "topic_configs", "broker_configs")
_COMMANDS = ("compact", "verify", "expire")
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_LOGGER = logging.getLogger("airflow.task")

_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")

_TEXT, _NAMES = ["null", "string"], ["null", "array"]
_BY_DIRECTORY = ["null", "string", "object"]
PARAMS = {
    "log_dirs": Param(None, type=_NAMES, items={"type": "string"}, description="The log directories."),
    "settings": Param(None, type=["null", "object"], description="--set: [TOPIC:]KEY and value."),
    "config": Param(
        None, type=_BY_DIRECTORY, description="--config: the broker's server.properties, or an object by log directory."
    ),
    "metadata": Param(
        None,
        type=_BY_DIRECTORY,
        description="--metadata: the log directory that holds __cluster_metadata-0, or an object by log directory.",
    ),
    "topic_configs": Param(
        None,
        type=_BY_DIRECTORY,
        description="--topic-configs: the output of kafka-configs.sh about the topics, or an object by log directory.",
    ),
    "broker_configs": Param(
        None,
        type=_BY_DIRECTORY,
        description="--broker-configs: the same about the brokers, or an object by log directory.",
    ),
    "broker_defaults": Param(
        None, type=["null", "boolean"], description="--broker-defaults: use Kafka's default for every unstated setting."
    ),
    "fail_on_unknown": Param(
        None,
        type=["null", "boolean"],
        description="--fail-on-unknown: fail if an unstated setting left a partition alone.",
    ),
    "partitions": Param(
        None,
        type=_NAMES,
        items={"type": "string"},
        description="Partitions to work on, by name or glob (default: all).",
    ),
    "force": Param(None, type=["null", "boolean"], description="Compact whatever the dirty ratio."),
    "dry_run": Param(None, type=["null", "boolean"], description="Change nothing; only report the changes."),
    "expire": Param(None, type=["null", "boolean"], description="Apply retention as well (default: yes)."),
    "archive": Param(None, type=_TEXT, description="expire --archive: the Delta table that keeps the deleted records."),
    "compact_options": Param(None, type=_NAMES, items={"type": "string"}, description="Further options of compact."),
    "ledger": Param(None, type=_TEXT, description="--ledger: the ledger that every run is appended to."),
    "report_dir": Param(None, type=_TEXT, description="Directory for the HTML reports; each run gets a subdirectory."),
    "metrics_file": Param(
        None, type=_TEXT, description="File for the Prometheus metrics of the last run, for a textfile collector."
    ),
    "before_dir": Param(
        None,
        type=_TEXT,
        description="Directory for the links, on the filesystem of the log directories (default: beside each).",
    ),
    "application": Param(None, type=_TEXT, description="Path of jobs/cli.py for spark-submit."),
    "spark_conf": Param(None, type=["null", "object"], description="Spark settings."),
}


def plan_jobs(given: Mapping[str, Any], run: str, now_ms: int) -> list[dict[str, Any]]:
    """Return the job of each log directory: the arguments of the task group `directory`, with options by command.

    Raises:
        AirflowFailException: `log_dirs` is empty or names a directory twice, the application does not exist, the
            settings for a directory of a KRaft node are missing, or a pattern matches nothing.
    """
    log_dirs = [os.path.normpath(path) for path in given.get("log_dirs") or ()]
    application = given.get("application") or APPLICATION
    if not log_dirs or len(set(log_dirs)) != len(log_dirs):
        raise AirflowFailException("log_dirs is empty or names a directory twice; set it in the variable `sediment`")
    if not Path(application).is_file():
        raise AirflowFailException(f"application {application} does not exist; set it in the variable `sediment`")
    for name in _FILES:
        _check_directories(given, name, log_dirs)
    _check_settings_are_known(given, log_dirs)
    _check_patterns(given.get("partitions") or (), log_dirs)
    return [_plan_job(given, run, now_ms, number, log_dir, application) for number, log_dir in enumerate(log_dirs)]


def _of_directory(given: Mapping[str, Any], name: str, log_dir: str) -> str | None:
    """Return a directory's value of a parameter, which is one value for all or an object by directory."""
    value = given.get(name)
    if isinstance(value, Mapping):
        value = {os.path.normpath(path): text for path, text in value.items()}.get(log_dir)
    return value or None


def _check_directories(given: Mapping[str, Any], name: str, log_dirs: Sequence[str]) -> None:
    value = given.get(name)
    if not isinstance(value, Mapping):
        return
    strange = sorted(path for path in value if os.path.normpath(path) not in log_dirs)
    if strange:
        raise AirflowFailException(f"{name} names {', '.join(strange)}; name directories of log_dirs")


def _check_settings_are_known(given: Mapping[str, Any], log_dirs: Sequence[str]) -> None:
    """Fail if neither metadata nor a parameter gives the topic settings for a directory of a KRaft node."""
    policies = (key.rpartition(":") for key in given.get("settings") or {})
    stated = {topic for topic, _, name in policies if topic and name == "cleanup.policy"}
    unknown = [
        log_dir
        for log_dir in log_dirs
        if _is_of_kraft_node(log_dir)
        and not Path(log_dir, _METADATA).is_dir()
        and not _of_directory(given, "metadata", log_dir)
        and not _of_directory(given, "config", log_dir)
        and not _of_directory(given, "topic_configs", log_dir)
        and not {name.rpartition("-")[0] for name in _selected(given.get("partitions") or (), log_dir)} <= stated
    ]
    if unknown:
        raise AirflowFailException(
            f"{', '.join(unknown)}: the directory of a KRaft node holds no {_METADATA}, so the settings of its "
            'topics are unknown and nothing was run; add to the variable `sediment` "config": the server.properties '
            'of the broker, or "metadata": the log directory of the node that holds it'
        )


def _is_of_kraft_node(log_dir: str) -> bool:
    try:
        return bool(_NODE_ID.search(Path(log_dir, "meta.properties").read_text("utf-8", errors="replace")))
    except OSError:
        return False


def _selected(patterns: Sequence[str], log_dir: str) -> list[str]:
    """Return the partitions of a directory that match the patterns, or all without patterns.

    Raises:
        OSError: the directory cannot be listed.
    """
    names = [entry.name for entry in os.scandir(log_dir) if entry.is_dir() and _PARTITION.fullmatch(entry.name)]
    names = [name for name in names if name != _METADATA]
    return [name for name in names if not patterns or any(fnmatch.fnmatchcase(name, given) for given in patterns)]


def _check_patterns(patterns: Sequence[str], log_dirs: Sequence[str]) -> None:
    """Fail if a pattern matches nothing in any directory; the tasks of an unreadable directory fail themselves."""
    try:
        names = sorted({name for log_dir in log_dirs for name in _selected((), log_dir)})
    except OSError:
        return
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            nearest = difflib.get_close_matches(pattern, names, n=3, cutoff=0.0)
            raise AirflowFailException(
                f"partitions: {pattern!r} matches no partition in any log directory, and nothing was run; "
                f"the nearest names are {', '.join(nearest) or 'none'}"
            )


def _plan_job(
    given: Mapping[str, Any], run: str, now_ms: int, number: int, log_dir: str, application: str
) -> dict[str, Any]:
    root = Path(given["before_dir"]) / str(number) if given.get("before_dir") else Path(f"{log_dir}.before")
    before = str(root / run)
    is_dry = bool(given.get("dry_run"))
    common = {
        "now_ms": now_ms,
        "settings": dict(given.get("settings") or {}),
        **{name: _of_directory(given, name, log_dir) for name in _FILES},
        "broker_defaults": bool(given.get("broker_defaults")),
        "ledger": given.get("ledger"),
    }
    selected = {
        "partitions": list(given.get("partitions") or ()),
        "allow_empty_selection": bool(given.get("partitions")),
        "fail_on_unknown": bool(given.get("fail_on_unknown")),
        "dry_run": is_dry,
    }
    options: dict[str, dict[str, Any]] = {
        "compact": {
            "keep_before": None if is_dry else before,
            "force": bool(given.get("force")),
            **selected,
            **common,
        },
        "verify": common,
        "expire": {"yes": True, "archive": given.get("archive"), **selected, **common},
    }
    if given.get("report_dir"):
        place = Path(given["report_dir"])
        for command, chosen in options.items():
            page = str(place / run / f"{number}-{command}.html")
            options[command] = {**chosen, "report": page, "metrics": str(_metrics(place, log_dir, command))}
    return {
        "log_dir": log_dir,
        "before": before,
        "is_dry": is_dry,
        "expires": given.get("expire") is not False,
        "application": application,
        "spark_conf": given.get("spark_conf") or {},
        "compact_options": list(given.get("compact_options") or ()),
        **options,
    }


def _metrics(report_dir: Path, log_dir: str, command: str) -> Path:
    """Return the same file each night, so that a failed run keeps the time of the last success."""
    return report_dir / "metrics" / f"{quote(log_dir, safe='')}.{command}.prom"


def _text_of(path: Path) -> str:
    return path.read_text("utf-8") if path.is_file() else ""


def changed_partitions(before: str) -> list[str] | None:
    """Return the partitions that `compact` linked before it changed them; None if `compact` did not start."""
    if not Path(before, _KEPT).is_file():
        return None
    return sorted(entry.name for entry in os.scandir(before) if entry.is_dir() and not entry.name.endswith(".linking"))


def _states_of_directories(ti: Any, run_id: str) -> dict[str, Any]:
    """Return the state of each task instance of the group `directory`; a key is `directory.compact_0`."""
    if not _IS_AIRFLOW_2:
        states: dict[str, Any] = ti.get_task_states(ti.dag_id, task_group_id="directory", run_ids=[run_id])[run_id]
        return states
    return {f"{each.task_id}_{each.map_index}": each.state for each in ti.get_dagrun().get_task_instances()}


class VerifyChanged(SedimentOperator):
    """`sediment verify` of the partitions that `compact` changed; an asset event if each is a correct compaction."""

    template_fields: Sequence[str] = (*SedimentOperator.template_fields, "is_dry")

    def __init__(self, *, is_dry: Any, **kwargs: Any) -> None:
        super().__init__(command="verify", **kwargs)
        self.is_dry = is_dry

    def execute(self, context: Context) -> None:
        """Verify the changed partitions.

        Raises:
            AirflowSkipException: `compact` did not start in this directory.
        """
        before, log_dir = self.log_dirs
        changed = [] if self.is_dry else changed_partitions(before)
        if changed is None:
            raise AirflowSkipException("compact did not start in this directory")
        if not changed:
            self.log.info("No partition of %s was changed.", log_dir)
            return
        self.options = {**self.options, "partitions": changed}
        super().execute(context)
        names = tuple(changed) if _IS_AIRFLOW_2 else changed
        context["outlet_events"][COMPACTED].add(Asset(f"file://{log_dir}"), extra={"changed": names})


class ExpireIfWanted(SedimentOperator):
    """`sediment expire`; skipped if the parameter `expire` is off."""

    template_fields: Sequence[str] = (*SedimentOperator.template_fields, "expires")

    def __init__(self, *, expires: Any, **kwargs: Any) -> None:
        super().__init__(command="expire", **kwargs)
        self.expires = expires

    def execute(self, context: Context) -> None:
        """Apply retention.

        Raises:
            AirflowSkipException: the parameter `expire` is off.
        """
        if not self.expires:
            raise AirflowSkipException("the parameter `expire` is off")
        super().execute(context)


def merge_metrics(texts: Mapping[str, str]) -> str:
    """Merge Prometheus texts by log directory; each sample gets its directory in the label `directory`."""
    families: dict[str, list[str]] = {}
    family = ""
    for directory, text in texts.items():
        label = 'directory="' + directory.replace("\\", "\\\\").replace('"', '\\"') + '"'
        for line in text.splitlines():
            if line.startswith("#"):
                family = line.split(" ")[2]
                if line not in families.setdefault(family, []):
                    families[family].append(line)
            elif found := _SAMPLE.match(line):
                labels = ",".join(filter(None, (found["labels"], label)))
                families.setdefault(family, []).append(f"{found['name']}{{{labels}}} {found['value']}")
    return "".join(f"{line}\n" for lines in families.values() for line in lines)


def unstated(summed: Mapping[str, Any]) -> list[str]:
    """Return a text for each unstated setting that left partitions alone, from the summary of a command."""
    return [
        f"{summed['command']}: {reason} ({_counted(sums['partitions'], 'partition')}, {_bytes_text(sums['bytes'])})"
        for reason, sums in summed["unknown"].items()
    ]


def figures(summaries: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the figures of a directory by column, from the summaries of its commands; "" if no summary has one."""
    compact, expire = summaries.get("compact"), summaries.get("expire")
    counted = {reason for summed in summaries.values() for reason in summed["unknown"]}
    unknown = {
        reason: max(summed["unknown"].get(reason, {}).get("partitions", 0) for summed in summaries.values())
        for reason in sorted(counted)
    }
    seconds = sum(summed["seconds"] for summed in summaries.values())
    return {
        "partitions": str(sum(compact["partitions"].values())) if compact else "",
        "compacted": str(compact["partitions"].get("compacted", 0)) if compact else "",
        "bytes before": _bytes_text(compact["bytes_before"]) if compact else "",
        "bytes after": _bytes_text(compact["bytes_after"]) if compact else "",
        "expired": (
            f"{_counted(expire['segments_deleted'], 'segment')}, "
            f"{_bytes_text(expire['bytes_before'] - expire['bytes_after'])}"
            if expire
            else ""
        ),
        "unknown": ", ".join(f"{count} {reason}" for reason, count in unknown.items()),
        "failed": str(sum(summed["failed"] for summed in summaries.values())) if summaries else "",
        "time": f"{seconds:.1f} s" if summaries else "",
    }


def _bytes_text(count: float) -> str:
    """Return a size in decimal units, as the commands show it."""
    for unit in _BYTE_UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {_BYTE_UNITS[-1]}"


_TONES = {"success": "good", "failed": "bad", "upstream_failed": "bad"}
"""Classes of page.css for the states of a task; any other state is neutral."""


def report_page(run: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the index page: for each directory the state of each command, linked to its page, and the figures."""
    columns = list(figures({}))
    heads = [("log directory", ""), *((name, "") for name in _COMMANDS), *((name, _style_of(name)) for name in columns)]
    head = "".join(f'<th scope="col" class="{style}">{name}' for name, style in heads)
    body = "".join(
        f'<tr><td class="name"><span class="mono">{html.escape(row["log_dir"])}</span>{_kept(row["kept"])}'
        + "".join(_cell(command, *row[command]) for command in _COMMANDS)
        + "".join(
            f'<td class="{_style_of(column)}" data-label="{column}">{html.escape(row["figures"][column])}'
            for column in columns
        )
        for row in rows
    )
    notes = "".join(
        f"<li><code>{html.escape(row['log_dir'])}</code>: {html.escape(note)}" for row in rows for note in row["notes"]
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Sediment, run {html.escape(run)}</title><style>{stylesheet()}</style>"
        f'<main><h1>Sediment, run {html.escape(run)}</h1><p class="soft">{_counted(len(rows), "log directory")}</p>'
        f'<div class="wide"><table class="rows"><thead><tr>{head}<tbody>{body}</table></div>'
        f"{'<h2>Failed, or left for a setting</h2><ul>' + notes + '</ul>' if notes else ''}</main></html>\n"
    )


def _cell(command: str, state: str, page: str) -> str:
    text = f'<a href="{page}">{state}</a>' if page else state
    return f'<td data-label="{command}" class="{_TONES.get(state, "neutral")}">{text}'


def _style_of(column: str) -> str:
    """Return the class of a column: numbers stay in one line."""
    return "" if column in ("expired", "unknown") else "number"


def _kept(path: str) -> str:
    return f'<div class="soft">kept for rescue: <span class="mono">{html.escape(path)}</span></div>' if path else ""


def _counted(number: int, noun: str) -> str:
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun.removesuffix('y')}ies" if noun.endswith("y") else f"{number} {noun}s"


def _name_of_run(run_id: str) -> str:
    return re.sub(r"[^0-9A-Za-z_-]+", "-", run_id)


with DAG(
    "sediment_nightly",
    description="Compact, verify and expire Kafka log directories",
    schedule=SCHEDULE,
    start_date=_BEGINNING,
    catchup=False,
    max_active_runs=1,
    params=PARAMS,
    tags=["kafka", "sediment"],
    default_args={"pool": POOL, "retries": 1, "retry_delay": RETRY_DELAY},
    doc_md=__doc__,
) as dag:

    @task(retries=0)
    def plan(params: dict[str, Any], run_id: str) -> list[dict[str, Any]]:
        """Return one job for each log directory."""
        standing = Variable.get(VARIABLE, deserialize_json=True, **{_DEFAULT: {}})
        unknown = sorted(standing.keys() - PARAMS.keys())
        if unknown:
            raise AirflowFailException(f"the variable `{VARIABLE}` has unknown names: {', '.join(unknown)}")
        given = {**standing, **{name: value for name, value in params.items() if value is not None}}
        run = _name_of_run(run_id)
        jobs = plan_jobs(given, run, time.time_ns() // 1_000_000)
        if given.get("report_dir"):
            for folder in (run, "metrics"):
                Path(given["report_dir"], folder).mkdir(parents=True, exist_ok=True)
        return jobs

    @task_group
    def directory(
        log_dir: Any,
        before: Any,
        is_dry: Any,
        expires: Any,
        application: Any,
        spark_conf: Any,
        compact_options: Any,
        compact: Any,
        verify: Any,
        expire: Any,
    ) -> None:
        """Compact, verify and expire one log directory; the arguments are those of a job."""
        spark = {"application": application, "conf": spark_conf}
        compacted = SedimentOperator(
            task_id="compact",
            command="compact",
            log_dirs=[log_dir],
            options=compact,
            arguments=compact_options,
            **spark,
        )
        verified = VerifyChanged(
            task_id="verify",
            log_dirs=[before, log_dir],
            is_dry=is_dry,
            options=verify,
            trigger_rule=TriggerRule.ALL_DONE,
            outlets=[COMPACTED],
            **spark,
        )
        expired = ExpireIfWanted(task_id="expire", log_dirs=[log_dir], expires=expires, options=expire, **spark)

        @task
        def forget_before(before: str) -> None:
            """Remove the links, which frees the space that compaction gained."""
            shutil.rmtree(before, ignore_errors=True)

        compacted >> verified >> [expired, forget_before(before)]

    @task(trigger_rule=TriggerRule.ALL_DONE, retries=0)
    def report(jobs: list[dict[str, Any]], params: dict[str, Any], run_id: str, ti: Any) -> None:
        """Write the report of all directories; fail if any task failed."""
        run = _name_of_run(run_id)
        states = _states_of_directories(ti, run_id)
        failed = []
        rows = []
        for number, job in enumerate(jobs):
            pulled = {
                command: ti.xcom_pull(task_ids=f"directory.{command}", map_indexes=number, key=SUMMARY)
                for command in _COMMANDS
            }
            summaries = {command: summed for command, summed in pulled.items() if summed}
            left = [clause for summed in summaries.values() for clause in unstated(summed)]
            row: dict[str, Any] = {
                "log_dir": job["log_dir"],
                "kept": job["before"] if Path(job["before"]).exists() else "",
                "figures": figures(summaries),
                "notes": [
                    *(
                        f"{each['partition']} {each['status']}: {each['reason']}"
                        for summed in summaries.values()
                        for each in summed["failures"]
                    ),
                    *left,
                ],
            }
            for command in _COMMANDS:
                state = str(states.get(f"directory.{command}_{number}") or "none")
                page = job[command].get("report", "")
                row[command] = (state, Path(page).name if page and Path(page).is_file() else "")
                if state not in ("success", "skipped"):
                    failed.append(f"{job['log_dir']}: {command} {state}")
            rows.append(row)
            for clause in left:
                _LOGGER.warning(
                    "%s: %s left for a setting that is not stated; give `config`, `metadata` or `settings`",
                    job["log_dir"],
                    clause,
                )
        standing = Variable.get(VARIABLE, deserialize_json=True, **{_DEFAULT: {}})
        report_dir = params.get("report_dir") or standing.get("report_dir")
        metrics_file = params.get("metrics_file") or standing.get("metrics_file")
        if report_dir:
            Path(report_dir, run, "index.html").write_text(report_page(run, rows), encoding="utf-8")
        if report_dir and metrics_file:
            texts: dict[str, str] = {}
            for job in jobs:
                texts[job["log_dir"]] = "".join(_text_of(Path(job[command]["metrics"])) for command in _COMMANDS)
            unfinished = Path(f"{metrics_file}.tmp")
            unfinished.write_text(merge_metrics(texts), encoding="utf-8")
            unfinished.replace(metrics_file)
        if failed:
            raise AirflowFailException("; ".join(failed))

    jobs = plan()
    directory.expand_kwargs(jobs) >> report(jobs)
