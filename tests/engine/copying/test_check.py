"""A check finds every difference between a copy and its manifest."""

import pytest

from sediment.engine.copying.check import FileDifference, check_copy
from sediment.engine.directory.output import Publisher
from sediment.segment_io.errors import CorruptDataError, UsageError
from sediment.segment_io.manifest import MANIFEST_FILE
from sediment.segment_io.stores import Store


@pytest.fixture
def copy(tmp_path):
    store = Store(str(tmp_path / "copy"))
    publisher = Publisher(store, "run")
    publisher.begin()
    store.make_folder("t-0")
    files = [publisher.publish(f"t-0/{name}", [name.encode()], attempt="1") for name in ("x", "y", "z")]
    publisher.finish(files, sources=[], now_ms=7)
    return store


def differences(copy):
    return {difference.name: difference.what for difference in check_copy(copy).differences}


def test_a_good_copy_has_no_difference(copy):
    checked = check_copy(copy)
    assert (checked.differences, checked.read_bytes, checked.files_without_digest) == ((), 3, 0)


def test_every_kind_of_difference_is_found(copy):
    copy.delete("t-0/x")
    copy.write("t-0/y", [b"yy"])
    copy.write("t-0/z", [b"Z"])
    copy.write("t-0/more", [b""])
    assert differences(copy) == {
        "t-0/x": f"does not exist in {copy}",
        "t-0/y": "has 2 bytes instead of 1",
        "t-0/z": "has different content",
        "t-0/more": "is not in the manifest",
    }


def test_the_lock_is_not_a_difference(copy):
    copy.write(".lock", [b""])
    assert differences(copy) == {}


def test_a_directory_without_a_manifest_is_not_a_copy(copy):
    copy.write(MANIFEST_FILE, [b"{"])
    with pytest.raises(CorruptDataError):
        check_copy(copy)
    copy.delete(MANIFEST_FILE)
    with pytest.raises(UsageError, match="not a complete copy"):
        check_copy(copy)


def test_a_file_that_an_earlier_copy_should_hold_is_looked_for_there(copy, tmp_path):
    document = copy.read(MANIFEST_FILE).replace(b'"t-0/x", ', b'"t-0/x", "held_in": "../earlier", ')
    copy.write(MANIFEST_FILE, [document])
    earlier = Store(str(tmp_path / "earlier"))
    assert check_copy(copy).differences == (
        FileDifference("t-0/x", f"does not exist in {earlier}"),
        FileDifference("t-0/x", "is not in the manifest"),
    )
    copy.delete("t-0/x")
    earlier.make_folder("t-0")
    earlier.write("t-0/x", [b"x"])
    assert check_copy(copy).differences == ()
