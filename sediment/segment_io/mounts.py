"""The filesystem type of a path, and the types of network filesystems.

On a network filesystem, `.lock` does not exclude other hosts, so another host may also use the log directory.  The
guarantees of a sync or a rename depend on the server.

Source: proc(5), /proc/pid/mountinfo.
"""

from __future__ import annotations

import re
from pathlib import Path

from sediment.segment_io.fs import without_links

MOUNT_TABLE = Path("/proc/self/mountinfo")

_NETWORK_TYPES = frozenset(
    {
        "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "moosefs",
        "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2", "smb2", "smb3", "smbfs", "vboxsf",
        "virtiofs", "vmhgfs", "wekafs",
    }
)  # fmt: skip
_FUSE_PREFIX = "fuse."
_ESCAPE = re.compile(r"\\([0-7]{3})")
_MOUNT_POINT = 4


def filesystem_type(path: Path, mount_table: Path = MOUNT_TABLE) -> str | None:
    """Return the type of the filesystem of `path`, such as `ext4` or `nfs4`; None if the system has no mount table."""
    try:
        lines = mount_table.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    resolved = without_links(path)
    found: tuple[int, str] | None = None
    for line in lines:
        left, separator, right = line.partition(" - ")
        fields, kinds = left.split(" "), right.split(" ")
        if not separator or len(fields) <= _MOUNT_POINT:
            continue
        mount_point = Path(_ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[_MOUNT_POINT]))
        # A later mount hides an earlier one at the same point.
        depth = len(mount_point.parts)
        if resolved.is_relative_to(mount_point) and (found is None or depth >= found[0]):
            found = depth, kinds[0]
    return None if found is None else found[1]


def network_filesystem(path: Path, mount_table: Path = MOUNT_TABLE) -> str | None:
    """Return the type of the filesystem of `path` if other hosts may use it too; None otherwise."""
    kind = filesystem_type(path, mount_table)
    return kind if kind is not None and (kind in _NETWORK_TYPES or kind.startswith(_FUSE_PREFIX)) else None
