"""Stores: a file under its final name is complete, listings show all files, and secrets are never shown."""

import errno
import os
import pickle

import pytest

from sediment.segment_io.errors import UsageError
from sediment.segment_io.stores import CHUNK_BYTES, ListedFs, Store, StoredFile


@pytest.fixture(params=["path", "uri"])
def store(request, tmp_path):
    place = tmp_path / "a b"
    made = Store(str(place) if request.param == "path" else place.as_uri())
    made.make_folder("t-0")
    return made


def test_what_was_written_is_listed_and_read_back(store, tmp_path):
    assert store.write("t-0/x", [b"ab", memoryview(b"cd")]) == 4
    store.write("y", [])
    store.set_mtime_ns("t-0/x", 1_700_000_000_123_456_789)
    assert list(store.files()) == ["t-0/x", "y"]
    assert store.files()["t-0/x"] == StoredFile(4, 1_700_000_000_123_456_789)
    assert store.files("t-0").keys() == {"t-0/x"}
    assert store.files("none") == {}
    assert store.folders() == ["t-0"]
    assert store.read("t-0/x") == b"abcd"
    assert store.read("none") is None
    assert store.local_path == tmp_path / "a b"
    assert not store.is_file()
    assert Store(str(tmp_path / "a b" / "y")).is_file()


def test_a_large_file_comes_in_pieces(store):
    content = os.urandom(CHUNK_BYTES + 5)
    store.write("x", [content])
    pieces = list(store.chunks("x"))
    assert [len(piece) for piece in pieces] == [CHUNK_BYTES, 5]
    assert b"".join(pieces) == content


def test_a_file_is_not_under_its_name_before_it_is_whole(store):
    store.write("x", [b"old"])

    def chunks():
        yield b"new"
        assert store.read("x") == b"old"
        raise OSError(errno.ENOSPC, "No space left on device", "x")

    with pytest.raises(OSError, match="No space left"):
        store.put("x", chunks(), part="x.part")
    assert store.read("x") == b"old"
    store.put("x", [b"new"], part="x.part")
    assert store.read("x") == b"new"
    store.delete("x.part")
    assert list(store.files()) == ["x"]


def test_files_and_folders_go(store):
    store.write("t-0/x", [b"x"])
    store.delete_folder("t-0")
    store.delete("none")
    assert store.files() == {}
    assert store.folders() == []


def test_errors_name_the_file(store):
    with pytest.raises(FileNotFoundError) as caught:
        list(store.chunks("none"))
    assert caught.value.filename == f"{store}/none"


def test_it_is_the_same_directory_after_pickling(store):
    store.write("x", [b"x"])
    assert pickle.loads(pickle.dumps(store)).read("x") == b"x"


def test_secrets_in_a_uri_are_not_shown():
    store = Store("s3://key:secret@bucket/logs?endpoint_override=127.0.0.1:1&scheme=http")
    assert str(store) == "s3://bucket/logs"
    assert store.identity == ("s3", "bucket/logs")
    assert not store.shows_incomplete_files


def test_errors_show_no_secret_of_a_uri():
    error = UsageError("no such directory", path="s3://key:secret@bucket/logs?token=secret")
    assert str(error) == "no such directory (file s3://bucket/logs)"


def test_a_path_is_shown_as_it_is():
    assert str(Store("/data/a?b")) == "/data/a?b"


def test_an_unknown_scheme_is_wrong_use():
    with pytest.raises(UsageError, match="nosuch://host/x"):
        Store("nosuch://host/x").files()


def test_a_listing_looks_like_a_directory(tmp_path):
    (entry,) = ListedFs({"x": StoredFile(4, 7)}).scan(tmp_path)
    assert (entry.name, entry.size_bytes, entry.mtime_ns, entry.is_directory) == ("x", 4, 7, False)


@pytest.mark.parametrize("uri", ["hdfs://host/a#2", "hdfs://host/a#", "s3://me:key@bucket/a#2?region=x", "file:///a#2"])
def test_a_number_sign_in_a_uri_is_refused(uri):
    with pytest.raises(UsageError, match="write %23") as refused:
        Store(uri).files()
    assert "key" not in str(refused.value)


@pytest.mark.parametrize("uri", ["hdfs://host:8020/a%232", "file:///a%232", "/a#2"])
def test_a_directory_may_have_a_number_sign_in_its_name(uri):
    assert Store(uri).identity[1] == "/a#2"


@pytest.mark.parametrize("path", ["./logs", "x/../logs", "/logs", "logs//x", "logs//", "%2e/logs", "..", "logs/."])
@pytest.mark.parametrize("scheme", ["s3", "gs", "hdfs"])
def test_another_name_of_a_directory_in_a_remote_store_is_refused(scheme, path):
    with pytest.raises(UsageError, match=r"contains //, \. or \.\.") as refused:
        Store(f"{scheme}://me:secret@bucket/{path}?region=x").files()
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("uri", ["s3://bucket?region=x", "s3://bucket/?region=x", "s3://bucket/a.b/..c/?region=x"])
def test_a_path_in_a_remote_store_may_end_with_a_slash_and_contain_dots(uri):
    assert Store(uri).identity[0] == "s3"


def test_a_name_that_the_filesystem_refuses_is_wrong_use():
    with pytest.raises(UsageError, match="the URI cannot be used"):
        Store("s3://me:secret@bucket/logs?region=x").read("a//b")


@pytest.mark.parametrize(
    "uri",
    [
        "s3://b/my dir?region=x&secret_key=hush",
        "s3://key:hu hush@b/x",
        "s3://key:a?hush@b/x",
        "s3://key:'a\nb, hush@b/x",
        "s3://b/x#token=hush",
        "s3://b/x?hdfs://y?z=hush",
        "unknown://key:hush@b/x y?z=hush",
    ],
)
def test_an_unusable_uri_shows_no_secret(uri):
    with pytest.raises(UsageError) as refused:
        Store(uri).is_file()
    shown = (str(refused.value), refused.value.what, refused.value.path or "", str(Store(uri)))
    assert not [text for text in shown if "hush" in text]


def test_a_local_uri_may_contain_dots(tmp_path):
    assert Store(f"file://{tmp_path}/./x/..").identity == Store(str(tmp_path)).identity


# ---------------------------------------------------------------------------------------------------------------- hdfs
@pytest.mark.parametrize("uri", ["hdfs://me@namenode:8020/logs", "hdfs://namenode:8020/logs?user=me", "hdfs:///logs"])
def test_a_directory_on_hdfs_names_a_namenode_and_no_user(uri):
    with pytest.raises(UsageError, match="HADOOP_USER_NAME") as refused:
        Store(uri).files()
    assert "me@" not in str(refused.value) and "user=" not in str(refused.value)


def test_equal_paths_of_two_clusters_are_different_directories():
    one, other = Store("hdfs://one:8020/a%20b/"), Store("hdfs://other:8020/a%20b")
    assert one.identity != other.identity
    assert one.identity == Store("hdfs://one:8020/a%20b").identity == pickle.loads(pickle.dumps(one)).identity
    assert one.identity[1] == "/a b"


def test_hdfs_by_http_is_refused():
    with pytest.raises(UsageError, match="hdfs://"):
        Store("webhdfs://namenode:9870/logs").files()
