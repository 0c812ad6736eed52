"""Filesystem types read from a mount table."""

from pathlib import Path

import pytest

from sediment.segment_io.mounts import filesystem_type, network_filesystem


@pytest.fixture
def table(tmp_path):
    root = tmp_path.resolve()
    lines = [
        "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw",
        f"28 27 0:50 / {root}/nfs rw,relatime shared:2 master:3 - nfs4 server:/export rw,vers=4.2",
        f"29 28 254:1 / {root}/nfs/local rw - xfs /dev/vdb rw",
        f"30 27 0:51 / {root}/with\\040space rw - fuse.sshfs host: rw",
        f"31 27 0:52 / {root}/twice rw - ext4 /dev/vdc rw",
        f"32 31 0:53 / {root}/twice rw - cifs //server/share rw",
        "malformed",
    ]
    path = tmp_path / "mountinfo"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("logs", "ext4"),
        ("nfs", "nfs4"),
        ("nfs/kafka/data", "nfs4"),
        ("nfs/local/data", "xfs"),
        ("nfsx", "ext4"),
        ("with space/a", "fuse.sshfs"),
        ("twice/a", "cifs"),
    ],
)
def test_the_mount_that_holds_a_path_is_the_deepest_and_the_last(tmp_path, table, place, kind):
    assert filesystem_type(tmp_path / place, table) == kind


def test_a_link_is_followed_to_the_filesystem_that_it_leads_to(tmp_path, table):
    (tmp_path / "nfs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nfs")
    assert filesystem_type(tmp_path / "link" / "data", table) == "nfs4"


def test_a_system_without_the_table_answers_nothing(tmp_path):
    assert filesystem_type(tmp_path, tmp_path / "none") is None


def test_the_table_of_this_system_is_understood(tmp_path):
    kind = filesystem_type(tmp_path)
    assert kind is None or " " not in kind


def table_of(folder: Path, kind: str) -> Path:
    path = folder / "mountinfo"
    path.write_text(f"27 1 254:0 / / rw,relatime shared:1 - {kind} device rw\n")
    return path


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "fuse.glusterfs", "ceph", "lustre", "9p", "glusterfs"])
def test_network_filesystems_are_known(tmp_path, kind):
    assert network_filesystem(tmp_path, table_of(tmp_path, kind)) == kind


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "fuseblk"])
def test_local_filesystems_are_none(tmp_path, kind):
    assert network_filesystem(tmp_path, table_of(tmp_path, kind)) is None
