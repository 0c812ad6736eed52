"""Paths whose content a process trusts: caches of compiled code, saved reports, the user's settings file, secrets.

A path is safe if only this user and root can change what it leads to.  Every directory and link on the way belongs to
one of the two, and nobody else may write in a directory.  In a directory with the sticky bit, such as /tmp, others may
add files but cannot replace those of this user, so such a directory may be a parent, but not the end of the path.

Source: the checks of sshd before it reads a user's keys (`safe_path` in OpenSSH's misc.c).
"""

from __future__ import annotations

import grp
import logging
import os
import pwd
import shlex
import stat
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_LOGGER = logging.getLogger(__name__)
_ROOT = 0
_GROUP = stat.S_IRGRP | stat.S_IWGRP
_OTHERS = stat.S_IROTH | stat.S_IWOTH
_MOST_LINKS = 40
_ACCESS_LIST = "system.posix_acl_access"
_ACCOUNTS = Path("/etc/passwd")
_MOST_ACCOUNTS_BYTES = 1 << 24

_said: set[str] = set()
_waiting: list[str] = []


class UnsafePathError(OSError):
    pass


def check_path(path: Path, *, is_parent: bool = False) -> Path:
    """Return `path` without links, after a check that it is safe; `is_parent` if it is only on the way."""
    place = Path("/")
    rest = deque(path.absolute().parts[1:])
    links = 0
    _check(place, place.lstat(), is_parent=True)
    while rest:
        name = rest.popleft()
        if name == "..":
            place = place.parent  # `place` has no links, and was checked
            continue
        entry = place / name
        status = entry.lstat()
        _check(entry, status, is_parent=True)
        if not stat.S_ISLNK(status.st_mode):
            place = entry
            continue
        links += 1
        if links > _MOST_LINKS:
            raise UnsafePathError(f"{path} has too many links")
        target = entry.readlink()
        if target.is_absolute():
            place = Path("/")
        rest.extendleft(reversed(target.parts[1:] if target.is_absolute() else target.parts))
    _check(place, place.lstat(), is_parent=is_parent)
    return place


def check_tree(folder: Path) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # a file of another process that was renamed when it was complete
            if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
                raise UnsafePathError(f"{entry.path} is neither a file nor a directory")
            _check(entry.path, status)
            if stat.S_ISDIR(status.st_mode):
                check_tree(Path(entry.path))


def safe_folder(path: Path, *, mode: int = 0o700) -> Path:
    """Return the folder at `path` without links; make it and its missing parents if all existing parents are safe.

    The new folders get `mode`, less what the umask takes away.
    """
    if not path.is_absolute():
        raise FileNotFoundError(f"{path} is not absolute: this user has no home directory")
    with suppress(FileNotFoundError):
        return check_path(path)
    try:
        check_path(path.parent, is_parent=True)
    except FileNotFoundError:
        safe_folder(path.parent, mode=mode)
    with suppress(FileExistsError):  # another process has made it meanwhile
        path.mkdir(mode)
    return check_path(path)


def own_temporary_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"sediment-{os.geteuid()}"


def write_private_file(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)


def refuse_cache(error: OSError, *, variable: str = "XDG_CACHE_HOME") -> None:
    if not isinstance(error, UnsafePathError):
        return
    sentence = (
        f"the cache of compiled code is not used, because others can change it: {error}; name a folder that only you "
        f"can change in {variable}"
    )
    if sentence in _said:
        return
    _said.add(sentence)
    if _LOGGER.hasHandlers() and _LOGGER.isEnabledFor(logging.WARNING):
        _LOGGER.warning(sentence)
    else:
        # The log of a command may not be ready yet, or leave warnings out.  The warning then waits for
        # `waiting_warnings`.
        _waiting.append(sentence)


def waiting_warnings() -> Iterator[str]:
    while _waiting:
        yield _waiting.pop(0)


def warn_of_readers(file: Path, option: str) -> None:
    """Warn if other users than this one and root can read or change `file`, whose secret `option` names.

    The group may read a file of root, as where root installs the key of a service.  Only files have a mode that counts:
    the pipe of `<(command)` has none.

    Source: libpq, which refuses such keys.
    """
    try:
        status = file.stat()
    except OSError:
        return  # whoever opens the file says so
    if not stat.S_ISREG(status.st_mode):
        return
    found = status.st_mode & _OTHERS
    if status.st_mode & _GROUP and not _is_private_group(file, status.st_gid):
        found |= status.st_mode & (stat.S_IWGRP if status.st_uid == _ROOT else _GROUP)
    if found:
        can = "read" if found & (stat.S_IRGRP | stat.S_IROTH) else "change"
        mode = f"mode {stat.S_IMODE(status.st_mode):03o}"
        name = shlex.quote(str(file))
        _LOGGER.warning("other users can %s the file of %s (%s); run chmod 600 %s", can, option, mode, name)


def _check(place: Path | str, status: os.stat_result, *, is_parent: bool = False) -> None:
    user = os.geteuid()
    if status.st_uid not in (_ROOT, user):
        raise UnsafePathError(f"{place} belongs to user {status.st_uid}, but this process runs as user {user}")
    if stat.S_ISLNK(status.st_mode) or (is_parent and status.st_mode & stat.S_ISVTX):
        return
    if status.st_mode & stat.S_IWOTH:
        who = "every user"
    elif status.st_mode & stat.S_IWGRP and not _is_private_group(place, status.st_gid):
        who = f"group {status.st_gid}"
    else:
        return
    raise UnsafePathError(f"{who} can change {place} (mode {stat.S_IMODE(status.st_mode):o})")


def _is_private_group(place: Path | str, group: int) -> bool:
    """Return True if the group has this user as its only member, as where each user has a group of the same name."""
    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    if user.pw_gid != group or found.gr_name != user.pw_name or set(found.gr_mem) - {user.pw_name}:
        return False
    # Another user may also have the group as its primary group, which the list of members does not show.
    if _users_with_primary_group(group) != {user.pw_name}:
        return False
    try:
        # With an access control list, the bits of the group stand for other users as well.
        return _ACCESS_LIST not in os.listxattr(place, follow_symlinks=False)
    except OSError:
        return True  # a filesystem without attributes has no access control lists


def _users_with_primary_group(group: int) -> set[str]:
    """Return the accounts of this machine whose primary group is `group`; empty if that cannot be found out."""
    try:
        # Only the file is read: a directory service may list millions of users, or none of those that it knows.  So a
        # user whom only such a service knows is in no private group.
        with open(_ACCOUNTS, "rb") as file:
            content = file.read(_MOST_ACCOUNTS_BYTES + 1)
    except OSError:
        return set()
    if len(content) > _MOST_ACCOUNTS_BYTES:
        return set()
    accounts = (line.split(b":") for line in content.splitlines())
    return {os.fsdecode(fields[0]) for fields in accounts if len(fields) > 3 and fields[3] == b"%d" % group}
