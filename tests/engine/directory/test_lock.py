import multiprocessing
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sediment.engine.directory.lock import (
    DirectoryLock,
    check_run_token,
    lock_holder,
    place_run_token,
    remove_run_token,
)
from sediment.segment_io.errors import (
    CorruptCheckpointError,
    DirectoryInUseError,
    LockLostError,
    NotALogDirectoryError,
    OwnerNotKeptError,
    OwnershipError,
    SourceChangedError,
)

JAVA_SOURCE = Path(__file__).parent / "HoldLock.java"
NOBODY = 65534

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")


@contextmanager
def jvm(directory: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start a JVM that tries to lock `directory`; yield its reply, locked or refused, and the process."""
    java = shutil.which("java")
    assert java is not None, "Java is needed: install a JDK of 17 or later"
    process = subprocess.Popen(
        [java, "-XX:TieredStopAtLevel=1", str(JAVA_SOURCE), str(directory / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def jvm_gets_the_lock(directory: Path) -> bool:
    with jvm(directory) as (answer, _):
        assert answer in ("locked", "refused")
        return answer == "locked"


def in_child(work: Callable[[], str]) -> str:
    """Return the result of `work` in a forked process."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        try:
            sender.send(work())
        except BaseException as error:
            sender.send(repr(error))
        os._exit(0)
    os.waitpid(child, 0)
    assert receiver.poll(0)
    return str(receiver.recv())


def attempt(directory: Path) -> str:
    try:
        with DirectoryLock(directory):
            return "locked"
    except DirectoryInUseError as error:
        return str(error)


# ------------------------------------------------------------------------------------------------------------ exclusion
def test_lm_01_a_directory_that_a_jvm_has_locked_is_refused_with_its_process(tmp_path: Path):
    with jvm(tmp_path) as (answer, process):
        assert answer == "locked"
        with pytest.raises(DirectoryInUseError, match=f"process {process.pid} holds the lock") as raised:
            DirectoryLock(tmp_path).acquire()
        assert raised.value.path == str(tmp_path / ".lock")
        assert "stop the broker" in str(raised.value)
    with DirectoryLock(tmp_path) as lock:
        lock.check()


def test_lm_01_a_jvm_is_refused_while_the_lock_is_held_and_gets_it_afterwards(tmp_path: Path):
    with DirectoryLock(tmp_path):
        assert not jvm_gets_the_lock(tmp_path)
    assert jvm_gets_the_lock(tmp_path)


def test_a_jvm_that_is_killed_gives_the_lock_back(tmp_path: Path):
    with jvm(tmp_path) as (answer, process):
        assert answer == "locked"
        process.send_signal(signal.SIGKILL)
        process.wait()
        with DirectoryLock(tmp_path) as lock:
            lock.check()


def test_a_second_lock_of_the_same_process_is_refused_and_the_first_one_still_holds(tmp_path: Path):
    link = tmp_path / "link"
    directory = tmp_path / "logs"
    directory.mkdir()
    link.symlink_to(directory)
    with DirectoryLock(directory) as lock:
        for same in (directory, link, directory / ".." / "logs"):
            with pytest.raises(DirectoryInUseError, match="this process already holds"):
                DirectoryLock(same).acquire()
        with pytest.raises(DirectoryInUseError):
            lock.acquire()
        lock.check()
        assert "holds the lock" in in_child(lambda: attempt(directory))
        assert not jvm_gets_the_lock(directory)


def test_another_process_is_refused_with_our_process_id(tmp_path: Path):
    with DirectoryLock(tmp_path):
        assert f"process {os.getpid()} holds the lock" in in_child(lambda: attempt(tmp_path))
    assert in_child(lambda: attempt(tmp_path)) == "locked"


def test_two_directories_can_be_locked_at_once(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with DirectoryLock(tmp_path / "a") as a, DirectoryLock(tmp_path / "b") as b:
        a.check()
        b.check()


def test_a_forked_child_does_not_hold_the_lock_and_its_end_does_not_release_it(tmp_path: Path):
    def check(lock: DirectoryLock) -> str:
        try:
            lock.check()
        except LockLostError:
            lock.release()
            return "not held"
        return "held"

    with DirectoryLock(tmp_path) as lock:
        assert in_child(lambda: check(lock)) == "not held"
        lock.check()
        assert "holds the lock" in in_child(lambda: attempt(tmp_path))


# ------------------------------------------------------------------------------------------------------------- lifetime
def test_a_lock_can_be_taken_again_after_its_release(tmp_path: Path):
    lock = DirectoryLock(tmp_path)
    for _ in range(3):
        lock.acquire()
        lock.check()
        lock.release()
        lock.release()
    with pytest.raises(LockLostError, match="does not hold"):
        lock.check()


def test_an_exception_releases_the_lock(tmp_path: Path):
    with pytest.raises(ZeroDivisionError), DirectoryLock(tmp_path):
        raise ZeroDivisionError
    assert attempt(tmp_path) == "locked"


def test_the_lock_file_stays_empty_and_is_never_removed(tmp_path: Path):
    with DirectoryLock(tmp_path):
        inode = (tmp_path / ".lock").stat().st_ino
    assert (tmp_path / ".lock").stat().st_ino == inode
    assert (tmp_path / ".lock").read_bytes() == b""


def remove(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.write_bytes(b"")


@pytest.mark.parametrize("disturb", [remove, replace])
def test_a_lock_file_that_was_removed_or_replaced_is_a_lost_lock(disturb: Callable[[Path], None], tmp_path: Path):
    with DirectoryLock(tmp_path) as lock:
        disturb(tmp_path / ".lock")
        with pytest.raises(LockLostError, match="removed or replaced"):
            lock.check()
        with pytest.raises(DirectoryInUseError):
            DirectoryLock(tmp_path).acquire()
    assert attempt(tmp_path) == "locked"


class RacingLock(DirectoryLock):
    """Another process removes or replaces the file `times` times between our opening and our locking it."""

    def __init__(self, directory: Path, times: int, disturb: Callable[[Path], None]) -> None:
        super().__init__(directory)
        self.times = times
        self.disturb = disturb

    def _open(self) -> int:
        descriptor = super()._open()
        if self.times:
            self.times -= 1
            self.disturb(self._path)
        return descriptor


@pytest.mark.parametrize("disturb", [remove, replace])
def test_a_lock_file_that_is_replaced_between_opening_and_locking_is_opened_again(
    disturb: Callable[[Path], None], tmp_path: Path
):
    with RacingLock(tmp_path, 2, disturb) as lock:
        lock.check()
        assert not jvm_gets_the_lock(tmp_path)


def test_a_lock_file_that_is_replaced_again_and_again_is_given_up(tmp_path: Path):
    with pytest.raises(DirectoryInUseError, match="replaced repeatedly"):
        RacingLock(tmp_path, 1000, replace).acquire()
    assert attempt(tmp_path) == "locked"


# ---------------------------------------------------------------------------------------------------------- permissions
def test_no_directory_is_told_as_such(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "nothing", tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotALogDirectoryError):
            DirectoryLock(path).acquire()


@only_root
def test_a_new_lock_file_belongs_to_whom_the_directory_belongs(tmp_path: Path):
    os.chown(tmp_path, 12345, 23456)
    with DirectoryLock(tmp_path):
        status = (tmp_path / ".lock").stat()
    assert (status.st_uid, status.st_gid) == (12345, 23456)


@only_root
def test_the_owner_of_an_existing_lock_file_is_left_alone(tmp_path: Path):
    (tmp_path / ".lock").write_bytes(b"")
    os.chown(tmp_path / ".lock", 11, 12)
    with DirectoryLock(tmp_path):
        status = (tmp_path / ".lock").stat()
    assert (status.st_uid, status.st_gid) == (11, 12)


def as_nobody(directory: Path) -> str:
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        DirectoryLock(directory).acquire()
    except OwnershipError as error:
        return f"{type(error).__name__}: {error}"
    return "locked"


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """Make a directory of root that every user can write to; `tmp_path` is closed to others."""
    with tempfile.TemporaryDirectory() as path:
        Path(path).chmod(0o777)
        yield Path(path)


@only_root
def test_a_lock_file_that_the_broker_could_not_open_is_not_created(open_directory: Path):
    answer = in_child(lambda: as_nobody(open_directory))
    assert answer.startswith(f"{OwnerNotKeptError.__name__}: a new lock file cannot be given owner 0")
    assert not (open_directory / ".lock").exists()


@only_root
def test_a_lock_file_of_another_user_is_an_error_that_says_what_to_do(open_directory: Path):
    (open_directory / ".lock").write_bytes(b"")
    (open_directory / ".lock").chmod(0o644)
    answer = in_child(lambda: as_nobody(open_directory))
    assert answer.startswith("OwnershipError: no permission to open the lock file")
    assert "run as the broker's user or as root" in answer


@only_root
def test_a_directory_that_may_not_be_entered_is_an_error_that_says_what_to_do(open_directory: Path):
    inner = open_directory / "closed" / "logs"
    inner.mkdir(parents=True)
    inner.parent.chmod(0o700)
    assert in_child(lambda: as_nobody(inner)).startswith("OwnershipError: no permission to enter the log directory")


# -------------------------------------------------------------------------------------------------------- the run token
META = "version=1\ncluster.id=c\nnode.id=1\ndirectory.id={}\n"
IDS = ("AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg")


def test_a_token_that_the_driver_placed_is_found_until_it_is_removed(tmp_path: Path):
    place_run_token(tmp_path, "run-1")
    check_run_token(tmp_path, "run-1")
    remove_run_token(tmp_path)
    with pytest.raises(SourceChangedError):
        check_run_token(tmp_path, "run-1")
    remove_run_token(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_token_of_another_run_is_refused_and_replaced_by_the_next_run(tmp_path: Path):
    place_run_token(tmp_path, "run-1")
    with pytest.raises(SourceChangedError, match="another disk at this path") as raised:
        check_run_token(tmp_path, "run-2")
    assert raised.value.path == str(tmp_path / ".sediment-run")
    place_run_token(tmp_path, "run-2")
    check_run_token(tmp_path, "run-2")
    with pytest.raises(SourceChangedError):
        check_run_token(tmp_path, "run-1")


def test_a_directory_that_is_not_mounted_is_refused(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "nothing", tmp_path / "file"):
        with pytest.raises(SourceChangedError):
            check_run_token(path, "run-1")


def test_a_token_that_was_copied_to_a_directory_with_another_id_is_refused(tmp_path: Path):
    (tmp_path / "meta.properties").write_text(META.format(IDS[0]))
    place_run_token(tmp_path, "run-1")
    check_run_token(tmp_path, "run-1")
    assert (tmp_path / ".sediment-run").read_text() == f"run.id=run-1\ndirectory.id={IDS[0]}\n"
    (tmp_path / "meta.properties").write_text(META.format(IDS[1]))
    with pytest.raises(SourceChangedError):
        check_run_token(tmp_path, "run-1")


def test_damaged_meta_properties_are_no_other_disk(tmp_path: Path):
    (tmp_path / "meta.properties").write_text("version=7\n")
    with pytest.raises(CorruptCheckpointError):
        place_run_token(tmp_path, "run-1")


# ------------------------------------------------------------------------------------------------------- odd lock files
def test_a_second_name_of_a_held_lock_file_is_refused_and_does_not_drop_the_lock(tmp_path: Path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    with DirectoryLock(one) as lock:
        os.link(one / ".lock", other / ".lock")
        assert lock_holder(other) == os.getpid()
        with pytest.raises(DirectoryInUseError, match="this process already holds"):
            DirectoryLock(other).acquire()
        lock.check()
        assert "holds the lock" in in_child(lambda: attempt(one))
    assert attempt(other) == "locked"


@pytest.mark.parametrize("kind", ["directory", "loop", "dangling"])
def test_a_lock_file_of_another_kind_is_named(tmp_path: Path, kind: str):
    path = tmp_path / ".lock"
    if kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(path if kind == "loop" else tmp_path / "nowhere")
    with pytest.raises(OwnershipError, match="the lock file"):
        DirectoryLock(tmp_path).acquire()
    assert path.is_dir() or path.is_symlink()
