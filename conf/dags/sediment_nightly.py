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

The DAG needs Airflow 3 with the Spark provider.  Parameters come from the run, else from the Airflow variable
`sediment`, a JSON object of the same names (docs/operate/airflow.md).  The file does not import Sediment, because
Airflow and Spark have separate environments.
"""

from __future__ import annotations

import difflib
import fnmatch
import html
import logging
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, Asset, AssetAlias, Context, Param, TriggerRule, Variable, task, task_group
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

VARIABLE = "sediment"
POOL = os.environ.get("SEDIMENT_POOL", "sediment")
SCHEDULE = os.environ.get("SEDIMENT_SCHEDULE", "0 2 * * *")
RETRY_DELAY = timedelta(seconds=float(os.environ.get("SEDIMENT_RETRY_SECONDS", "300")))

COMPACTED = AssetAlias("sediment-compacted")
"""Log directories that a run changed and `verify` found correct, each as the asset `file://<directory>`."""

_KEPT = ".sediment-before"  # `compact --keep-before` writes it to mark a directory that it created
_METADATA = "__cluster_metadata-0"
_PARTITION = re.compile(r".+-[0-9]+")
_NODE_ID = re.compile(r"^\s*node\.id\s*[=:]", re.MULTILINE)
_PARTITIONS_BY_REASON, _BYTES_BY_REASON = "sediment_run_partitions_by_reason", "sediment_run_bytes_by_reason"
_UNSTATED = ("policy-unknown", "retention-unknown", "tombstones-kept")
_LOGGER = logging.getLogger("airflow.task")

_WRONG_USE = re.compile(r"Error code is: 2\b")
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
    """Return the job of each log directory: arguments by command, and the directory for the links of `compact`.

    Raises:
        AirflowFailException: `log_dirs` is empty or names a directory twice, the application does not exist, the
            settings for a directory of a KRaft node are missing, or a pattern matches nothing.
    """
    log_dirs = [os.path.normpath(path) for path in given.get("log_dirs") or ()]
    application = given.get("application") or str(Path(__file__).resolve().parents[2] / "jobs" / "cli.py")
    if not log_dirs or len(set(log_dirs)) != len(log_dirs):
        raise AirflowFailException("log_dirs is empty or names a directory twice; set it in the variable `sediment`")
    if not Path(application).is_file():
        raise AirflowFailException(f"application {application} does not exist; set it in the variable `sediment`")
    for name in ("config", "metadata"):
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
    common = [f"--now-ms={now_ms}", "--log-format=json"]
    common += [f"--set={key}={value}" for key, value in (given.get("settings") or {}).items()]
    for name in ("config", "metadata"):
        value = _of_directory(given, name, log_dir)
        common += [f"--{name}={value}"] if value else []
    common += ["--broker-defaults"] if given.get("broker_defaults") else []
    common += [f"--ledger={given['ledger']}"] if given.get("ledger") else []
    selected = [f"--partition={name}" for name in given.get("partitions") or ()]
    selected += ["--allow-empty-selection"] if selected else []
    selected += ["--fail-on-unknown"] if given.get("fail_on_unknown") else []
    dry_run = ["--dry-run"] if given.get("dry_run") else []
    keeping = [] if dry_run else [f"--keep-before={before}"]
    force = ["--force"] if given.get("force") else []
    archive = [f"--archive={given['archive']}"] if given.get("archive") else []
    arguments = {
        "compact": [log_dir, *keeping, *force, *dry_run, *(given.get("compact_options") or ()), *selected, *common],
        "verify": [before, log_dir, *common],
        "expire": [log_dir, "--yes", *archive, *dry_run, *selected, *common],
    }
    pages, metrics = {}, {}
    if given.get("report_dir"):
        place = Path(given["report_dir"])
        for command, options in arguments.items():
            pages[command] = str(place / run / f"{number}-{command}.html")
            metrics[command] = str(_metrics(place, log_dir, command))
            options += [f"--report={pages[command]}", f"--metrics={metrics[command]}"]
    return {
        "log_dir": log_dir,
        "before": before,
        "is_dry": bool(dry_run),
        "expires": given.get("expire") is not False,
        "application": application,
        "spark_conf": given.get("spark_conf") or {},
        "arguments": arguments,
        "pages": pages,
        "metrics": metrics,
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


class SedimentOperator(SparkSubmitOperator):
    """`spark-submit jobs/cli.py COMMAND …` for one job of the plan; exit status 2 is not retried."""

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "job")

    def __init__(self, *, command: str, job: Any, **kwargs: Any) -> None:
        super().__init__(name=f"sediment {command}", **kwargs)
        self.command = command
        self.job = job

    def execute(self, context: Context) -> None:
        """Submit the command and wait until it ends."""
        changed: list[str] = []
        if self.command == "verify" and not self.job["is_dry"]:
            found = changed_partitions(self.job["before"])
            if found is None:
                raise AirflowSkipException("compact did not start in this directory")
            changed = found
        if self.command == "expire" and not self.job["expires"]:
            raise AirflowSkipException("the parameter `expire` is off")
        if self.command == "verify" and not changed:
            self.log.info("No partition of %s was changed.", self.job["log_dir"])
            return
        self.application = self.job["application"]
        self.conf = {**self.job["spark_conf"]}
        arguments = [*self.job["arguments"][self.command], *(f"--partition={name}" for name in changed)]
        self.application_args = [self.command, *arguments]
        try:
            super().execute(context)
        except AirflowException as error:
            if _WRONG_USE.search(str(error)):
                raise AirflowFailException(f"wrong use or settings: {error}") from error
            raise
        if changed:
            context["outlet_events"][COMPACTED].add(Asset(f"file://{self.job['log_dir']}"), extra={"changed": changed})


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


def unstated(command: str, text: str) -> list[str]:
    """Return a text for each unstated setting that left partitions alone, from a command's Prometheus text."""
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        reason = re.search(r'(?:^|,)reason="([^"]*)"', sample["labels"] or "") if sample else None
        if sample and reason and reason[1] in _UNSTATED:
            sums = found.setdefault(reason[1], {})
            sums[sample["name"]] = sums.get(sample["name"], 0) + float(sample["value"])
    return [
        f"{command}: {reason} ({sums.get(_PARTITIONS_BY_REASON, 0):.0f} partitions, "
        f"{sums.get(_BYTES_BY_REASON, 0):.0f} bytes)"
        for reason, sums in sorted(found.items())
    ]


def report_page(run: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return an HTML page with the state of each command in each directory, linked to its report if there is one."""
    body = "".join(
        f"<tr><td>{html.escape(row['log_dir'])}"
        + "".join(
            f'<td class="{state}">' + (f'<a href="{page}">{state}</a>' if page else state)
            for state, page in (row[command] for command in ("compact", "verify", "expire"))
        )
        + f"<td>{html.escape(row['kept'])}<td>{html.escape('; '.join(row['unstated']))}"
        for row in rows
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Sediment {html.escape(run)}</title><style>body{{font:16px/1.5 system-ui;margin:2rem}}"
        "table{border-collapse:collapse}td,th{padding:.3rem 1rem;text-align:left;border-bottom:1px solid #8884}"
        ".failed,.upstream_failed{background:#c223}.success{background:#2a22}</style>"
        f"<h1>{html.escape(run)}</h1><table><tr><th>log directory<th>compact<th>verify<th>expire<th>kept for rescue"
        "<th>left for an unstated setting"
        f"{body}</table></html>\n"
    )


def _name_of_run(run_id: str) -> str:
    return re.sub(r"[^0-9A-Za-z_-]+", "-", run_id)


with DAG(
    "sediment_nightly",
    description="Compact, verify and expire Kafka log directories",
    schedule=SCHEDULE,
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
        standing = Variable.get(VARIABLE, default={}, deserialize_json=True)
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
    def directory(job: Any) -> None:
        """Compact, verify and expire one log directory."""
        compact = SedimentOperator(task_id="compact", command="compact", job=job)
        verify = SedimentOperator(
            task_id="verify", command="verify", job=job, trigger_rule=TriggerRule.ALL_DONE, outlets=[COMPACTED]
        )
        expire = SedimentOperator(task_id="expire", command="expire", job=job)

        @task
        def forget_before(job: dict[str, Any]) -> None:
            """Remove the links, which frees the space that compaction gained."""
            shutil.rmtree(job["before"], ignore_errors=True)

        compact >> verify >> [expire, forget_before(job)]

    @task(trigger_rule=TriggerRule.ALL_DONE, retries=0)
    def report(jobs: list[dict[str, Any]], params: dict[str, Any], run_id: str, ti: Any) -> None:
        """Write the report of all directories; fail if any task failed."""
        run = _name_of_run(run_id)
        states = ti.get_task_states(ti.dag_id, task_group_id="directory", run_ids=[run_id])[run_id]
        failed = []
        rows = []
        for number, job in enumerate(jobs):
            row: dict[str, Any] = {
                "log_dir": job["log_dir"],
                "kept": job["before"] if Path(job["before"]).exists() else "",
                "unstated": [],
            }
            for command in job["arguments"]:
                state = str(states.get(f"directory.{command}_{number}") or "none")
                page = job["pages"].get(command, "")
                row[command] = (state, Path(page).name if page and Path(page).is_file() else "")
                if page and state in ("success", "failed"):
                    row["unstated"] += unstated(command, _text_of(Path(job["metrics"][command])))
                if state not in ("success", "skipped"):
                    failed.append(f"{job['log_dir']}: {command} {state}")
            rows.append(row)
            for clause in row["unstated"]:
                _LOGGER.warning(
                    "%s: %s left for a setting that is not stated; give `config`, `metadata` or `settings`",
                    job["log_dir"],
                    clause,
                )
        standing = Variable.get(VARIABLE, default={}, deserialize_json=True)
        report_dir = params.get("report_dir") or standing.get("report_dir")
        metrics_file = params.get("metrics_file") or standing.get("metrics_file")
        if report_dir:
            Path(report_dir, run, "index.html").write_text(report_page(run, rows), encoding="utf-8")
        if report_dir and metrics_file:
            texts: dict[str, str] = {}
            for job in jobs:
                texts[job["log_dir"]] = "".join(_text_of(Path(path)) for path in job["metrics"].values())
            unfinished = Path(f"{metrics_file}.tmp")
            unfinished.write_text(merge_metrics(texts), encoding="utf-8")
            unfinished.replace(metrics_file)
        if failed:
            raise AirflowFailException("; ".join(failed))

    jobs = plan()
    directory.expand(job=jobs) >> report(jobs)
