"""`sediment demo`: plan, compact and verify on a small log directory that Kafka 4.2.0 wrote.

`demo.tar.xz` holds partitions that no cleaner has seen, and the files that a stopped broker leaves beside them: a
metadata log with each topic's config, `meta.properties` and checkpoints.  Hence the commands that are shown here need
no options that a real directory would not need.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sediment.jobs.command_line.configured_command import plain_command
from sediment.jobs.command_line.declaration import Directory, argument, option
from sediment.jobs.command_line.exit_status import EXIT_DONE
from sediment.jobs.process.standard_output import write_result
from sediment.jobs.spark.session import require_spark
from sediment.segment_io.errors import UsageError
from sediment.segment_io.printable import printable

LOG_DIR = "kafka-logs"
PROPERTIES = "server.properties"
PAGE = "compact.html"
ARCHIVE = Path(__file__).with_name("demo.tar.xz")
STEPS = (
    ("Plan: how much space would a compaction free?  Nothing is written.", f"sediment plan --config {PROPERTIES}"),
    (
        f"Compact.  Hard links keep the old files in `before`, and {PAGE} shows the run as a page.",
        f"sediment compact --config {PROPERTIES} --keep-before before --report {PAGE}",
    ),
    (
        "Verify the result against the old files, by rules that are independent of the cleaner.",
        f"sediment verify before {LOG_DIR} --config {PROPERTIES}",
    ),
)
NEXT = (
    ("open the page of the run in a browser", f"xdg-open {PAGE}"),
    ("look at the records", f"sediment dump {LOG_DIR}/plain-0 --what records --limit 5"),
    ("see what a second run would do", f"sediment plan --config {PROPERTIES}"),
    ("let any Kafka client read them", f"sediment serve {LOG_DIR} --read-only"),
    ("compare the files", f"ls -l {LOG_DIR}/plain-0 before/plain-0"),
)


def prepare(folder: Path) -> None:
    """Make the log directory and its server.properties in `folder`.

    Raises:
        UsageError: a log directory is there already.
    """
    log_dir = folder / LOG_DIR
    if log_dir.exists():
        raise UsageError(f"{log_dir} exists", advice="remove it, or give another DIR")
    if "," in str(log_dir):
        raise UsageError(f"{log_dir} has a comma, which separates directories in log.dirs", advice="give another DIR")
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(ARCHIVE) as archive:
        # Python before 3.11.4 has no filters; the archive is part of this package.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _path: member)
        archive.extractall(folder)
    (folder / PROPERTIES).write_text(properties_of(log_dir))


def properties_of(log_dir: Path) -> str:
    import javaproperties

    values = {"process.roles": "broker,controller", "node.id": "1", "log.dirs": str(log_dir)}
    text: str = javaproperties.dumps(values, timestamp=False)
    return text


def introduction(folder: Path) -> str:
    # In an environment that is not activated, as that of `make demo`, a shell does not find the command.
    scripts = printable(shlex.quote(str(Path(sys.executable).parent)))
    hint = "" if shutil.which("sediment") else f"$ PATH={scripts}:$PATH\n"
    return (
        f"Apache Kafka 4.2.0 wrote the partitions in {printable(str(folder / LOG_DIR))}.  The directory also has a\n"
        f"metadata log with each topic's config, and {PROPERTIES} is beside it, as if a broker had been stopped.\n"
        f"\n$ cd {printable(shlex.quote(str(folder)))}\n{hint}"
    )


def what_next() -> str:
    width = max(len(line) for _, line in NEXT)
    lines = (f"    {line:{width}}   # {purpose}\n" for purpose, line in NEXT)
    return "\nThe directory stays until you remove it.  Try next, in that folder:\n\n" + "".join(lines)


def run(line: str, folder: Path) -> int:
    """Run a command that is shown, in `folder`, and return its exit status."""
    # With -P, no module is imported from the working directory.
    arguments = [sys.executable, "-P", "-m", "sediment", *shlex.split(line)[1:]]
    return subprocess.run(arguments, cwd=folder, check=False).returncode


# -------------------------------------------------------------------------------------------------------------- command
@dataclass(frozen=True, slots=True)
class DemoOptions:
    folder: Directory | None = argument("[DIR]")
    prepare: bool = option(False, "Only write the directory, and run no command on it.")


@plain_command("demo", DemoOptions)
def command(own: DemoOptions) -> None:
    """Write a small log directory, and show plan, compact and verify on it, with what to try next.

    The files are written into DIR, which is made if it does not exist; without DIR, into a new temporary directory.
    Nothing outside of it is changed.
    """
    if not own.prepare:
        require_spark()
    folder = (own.folder or Path(tempfile.mkdtemp(prefix="sediment-demo-"))).resolve()
    prepare(folder)
    write_result(introduction(folder))
    if own.prepare:
        raise SystemExit(EXIT_DONE)
    for number, (purpose, line) in enumerate(STEPS, 1):
        write_result(f"\n{number}. {purpose}\n\n$ {line}\n\n")
        status = run(line, folder)
        if status != EXIT_DONE:
            raise SystemExit(status)
    write_result(what_next())
    raise SystemExit(EXIT_DONE)


if __name__ == "__main__":
    command()
