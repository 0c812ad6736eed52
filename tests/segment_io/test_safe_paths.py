"""Paths that only this user and root can change."""

from __future__ import annotations

import grp
import logging
import os
import stat
from pathlib import Path

import pytest

from sediment.segment_io import safe_paths
from sediment.segment_io.safe_paths import (
    UnsafePathError,
    check_path,
    check_tree,
    refuse_cache,
    safe_folder,
    waiting_warnings,
    warn_of_readers,
    write_private_file,
)
from tests.other_users import ATTACKER, only_root

NO_MEMBER = 54321


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return a folder like /tmp."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def folder(path: Path, mode: int = 0o755) -> Path:
    path.mkdir(parents=True)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o500, 0o2755])
def test_a_folder_of_this_user_in_a_shared_folder_with_the_sticky_bit_is_safe(shared: Path, mode: int):
    assert check_path(folder(shared / "own", mode)) == shared / "own"


def test_a_shared_folder_is_no_cache_itself_even_with_the_sticky_bit(shared: Path):
    with pytest.raises(UnsafePathError, match=r"every user can change .*shared \(mode 1777\)"):
        check_path(shared)
    with pytest.raises(UnsafePathError):
        check_path(folder(shared / "a") / "..")


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o702])
def test_a_parent_in_which_others_can_rename_folders_makes_every_path_unsafe(tmp_path: Path, mode: int):
    own = folder(tmp_path / "open" / "own", 0o700)
    own.parent.chmod(mode)
    with pytest.raises(UnsafePathError, match=r"every user can change .*open \(mode 7"):
        check_path(own)


def test_a_group_that_others_are_in_makes_a_path_unsafe_and_a_private_group_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    own = folder(tmp_path / "own", 0o775)
    group = own.stat().st_gid
    user = safe_paths.pwd.getpwuid(os.geteuid())

    def groups(name: str, members: list[str]) -> None:
        monkeypatch.setattr(safe_paths.grp, "getgrgid", lambda _: grp.struct_group((name, "x", group, members)))
        like_user = safe_paths.pwd.struct_passwd((user.pw_name, "x", user.pw_uid, group, "", user.pw_dir, ""))
        monkeypatch.setattr(safe_paths.pwd, "getpwuid", lambda _: like_user)

    accounts = tmp_path / "passwd"
    monkeypatch.setattr(safe_paths, "_ACCOUNTS", accounts)
    own_line = f"{user.pw_name}:x:{user.pw_uid}:{group}::/:/bin/sh\n"
    accounts.write_text(f"other:x:9:{group}9::/:/bin/sh\n{own_line}\n+::::::\n")
    groups(user.pw_name, [])
    assert check_path(own) == own
    groups(user.pw_name, [user.pw_name])
    assert check_path(own) == own
    for name, members in (("developers", []), (user.pw_name, ["somebody"])):
        groups(name, members)
        with pytest.raises(UnsafePathError, match=rf"group {group} can change .*own \(mode 775\)"):
            check_path(own)
    # Another account has the group as its primary group, or it is not known which accounts there are.
    groups(user.pw_name, [])
    for content in (f"{own_line}other:x:9:{group}::/:/bin/sh\n", "", None, f"{own_line}{' ' * (1 << 24)}"):
        accounts.unlink()
        if content is not None:
            accounts.write_text(content)
        with pytest.raises(UnsafePathError, match=rf"group {group} can change .*own \(mode 775\)"):
            check_path(own)
        accounts.touch()


@only_root
def test_what_belongs_to_another_user_is_unsafe_wherever_it_is_on_the_way(shared: Path):
    foreign = folder(shared / "foreign", 0o755)
    own = folder(foreign / "own", 0o700)
    os.chown(foreign, ATTACKER, ATTACKER)
    link = shared / "link"
    link.symlink_to(folder(shared / "safe"))
    os.chown(link, ATTACKER, ATTACKER, follow_symlinks=False)
    for path in (foreign, own, link, link / "below"):
        with pytest.raises(UnsafePathError, match=f"belongs to user {ATTACKER}, but this process runs as user 0"):
            check_path(path)


def test_the_files_of_root_are_safe_for_every_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: NO_MEMBER)
    assert check_path(Path("/usr")) == Path("/usr").resolve()
    if (tmp_path).stat().st_uid != 0:
        with pytest.raises(UnsafePathError, match="belongs to user"):
            check_path(tmp_path)


def test_links_are_followed_and_every_folder_on_their_way_is_checked(tmp_path: Path):
    target = folder(tmp_path / "a" / "target", 0o700)
    (tmp_path / "absolute").symlink_to(target)
    (folder(tmp_path / "b") / "relative").symlink_to("../absolute")
    assert check_path(tmp_path / "b" / "relative") == target
    target.parent.chmod(0o777)
    with pytest.raises(UnsafePathError, match=r"every user can change .*/a "):
        check_path(tmp_path / "b" / "relative")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UnsafePathError, match="too many links"):
        check_path(tmp_path / "loop")
    with pytest.raises(FileNotFoundError):
        check_path(tmp_path / "missing")


def test_a_new_folder_is_private_whatever_the_umask_is(tmp_path: Path):
    before = os.umask(0)
    try:
        made = safe_folder(safe_folder(tmp_path / "a" / "b") / "c", mode=0o755)
        write_private_file(made / "report", "text")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (made.parent.parent, made.parent, made, made / "report")]
    assert modes == [0o700, 0o700, 0o755, 0o600]
    assert safe_folder(made) == made


def test_a_folder_of_its_own_is_made_for_this_user_in_a_shared_folder(shared: Path):
    made = safe_folder(shared / "sediment-1" / "traces")
    assert (stat.S_IMODE(made.stat().st_mode), stat.S_IMODE(made.parent.stat().st_mode)) == (0o700, 0o700)


def test_nothing_is_made_in_a_folder_that_others_can_change(tmp_path: Path):
    folder(tmp_path / "open", 0o777)
    with pytest.raises(UnsafePathError):
        safe_folder(tmp_path / "open" / "a" / "b")
    assert list((tmp_path / "open").iterdir()) == []


def test_a_user_without_a_home_gets_no_folder_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match="no home directory"):
        safe_folder(Path("~/.cache/sediment"))
    assert list(tmp_path.iterdir()) == []


def test_a_private_file_is_written_through_no_link_and_over_no_file(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "file").write_text("old")
    for name in ("link", "file"):
        with pytest.raises(FileExistsError):
            write_private_file(tmp_path / name, "new")
    assert not (tmp_path / "target").exists() and (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize("harm", ["open folder", "open file", "link", "pipe"])
def test_a_tree_is_safe_only_if_every_file_in_it_is(tmp_path: Path, harm: str):
    inner = folder(tmp_path / "cache" / "inner")
    (inner / "file").touch(0o644)
    check_tree(tmp_path / "cache")
    if harm == "open folder":
        inner.chmod(0o777)
    elif harm == "open file":
        (inner / "file").chmod(0o666)
    elif harm == "link":
        (inner / "link").symlink_to(inner / "file")
    else:
        os.mkfifo(inner / "pipe")
    with pytest.raises(UnsafePathError, match=str(inner)):
        check_tree(tmp_path / "cache")


def test_a_refusal_is_said_once_and_waits_for_a_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(safe_paths, "_said", set())
    monkeypatch.setattr(logging.Logger, "hasHandlers", lambda _: False)
    for _ in range(2):
        refuse_cache(UnsafePathError("every user can change /cache (mode 777)"), variable="SEDIMENT_KERNEL_CACHE")
        refuse_cache(FileNotFoundError("no such folder"))
    assert caplog.messages == []
    assert [*waiting_warnings(), *waiting_warnings()] == [
        "the cache of compiled code is not used, because others can change it: every user can change /cache (mode "
        "777); name a folder that only you can change in SEDIMENT_KERNEL_CACHE"
    ]


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (0o644, "other users can read the file of --tls-key (mode 644); run chmod 600 '{}'"),
        (0o602, "other users can change the file of --tls-key (mode 602); run chmod 600 '{}'"),
        (0o660, "other users can change the file of --tls-key (mode 660); run chmod 600 '{}'"),
        (0o640, None),
        (0o600, None),
        (0o511, None),
    ],
)
@only_root
def test_a_secret_of_root_that_others_can_read_is_named_with_the_command_that_ends_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, said: str | None
):
    file = tmp_path / "the key"
    file.touch()
    os.chown(file, 0, NO_MEMBER)
    file.chmod(mode)
    warn_of_readers(file, "--tls-key")
    assert caplog.messages == ([] if said is None else [said.format(file)])


@only_root
def test_a_secret_of_another_user_may_not_be_read_by_its_group(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    file = tmp_path / "key"
    file.touch()
    os.chown(file, NO_MEMBER, NO_MEMBER)
    file.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(file)
    warn_of_readers(link, "--users")
    assert caplog.messages == [f"other users can read the file of --users (mode 640); run chmod 600 {link}"]


def test_a_pipe_and_a_missing_file_have_no_mode_that_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "pipe").chmod(0o666)
    for name in ("pipe", "missing"):
        warn_of_readers(tmp_path / name, "--users")
    assert caplog.messages == []
