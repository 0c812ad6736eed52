"""Users files and credentials: what is read, what is refused, and that unknown users look like known ones."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sediment.segment_io.errors import UsageError
from sediment.segment_io.protocol import messages as m
from sediment.server.security.credentials import (
    HASHES,
    Credentials,
    ScramCredential,
    check_credential,
    of_cluster,
    read_users,
)
from tests.server.security.scram_users import credential, line

ALICE = credential("alice-secret")
BOB = credential("bob-secret", "SCRAM-SHA-512")


def test_a_users_file_is_read(tmp_path):
    file = tmp_path / "users"
    file.write_text(f"# comment\n\n{line('alice', 'SCRAM-SHA-256', ALICE)}\r\n{line('a:b', 'SCRAM-SHA-512', BOB)}\n")
    users = read_users(file)
    assert users.mechanisms == ("SCRAM-SHA-512", "SCRAM-SHA-256")
    assert users.find("SCRAM-SHA-256", "alice") == ALICE
    assert users.find("SCRAM-SHA-512", "a:b") == BOB
    assert users.find_any("alice") == ("SCRAM-SHA-256", ALICE)
    assert len(users) == 2


def test_a_users_file_may_begin_with_a_byte_order_mark(tmp_path):
    file = tmp_path / "users"
    file.write_bytes(b"\xef\xbb\xbf" + line("alice", "SCRAM-SHA-256", ALICE).encode())
    assert read_users(file).find("SCRAM-SHA-256", "alice") == ALICE


def test_a_users_file_that_others_can_read_is_accepted_with_a_warning(tmp_path, caplog):
    file = tmp_path / "users"
    file.write_text(line("alice", "SCRAM-SHA-256", ALICE))
    file.chmod(0o644)
    read_users(file)
    assert caplog.messages == [f"other users can read the file of --users (mode 644); run chmod 600 {file}"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "contains no user"),
        ("alice:secret\n", "line 1 of --users does not have 6 fields"),
        (line("", "SCRAM-SHA-256", ALICE), "does not have 6 fields"),
        (line("alice", "SCRAM-SHA-1", ALICE), "mechanism"),
        (line("alice", "SCRAM-SHA-512", ALICE), "a key that is not 64 bytes long"),
        (line("alice", "SCRAM-SHA-256", ALICE).replace(":4096:", ":4095:"), "iterations"),
        (line("alice", "SCRAM-SHA-256", ALICE).replace(":4096:", ":" + "9" * 5000 + ":"), "has an iteration count"),
        (line("alice", "SCRAM-SHA-256", ALICE).replace(":4096:", ":\u0664\u0660\u0669\u0666:"), "iterations"),
        (line("alice", "SCRAM-SHA-256", ALICE).replace(":4096:", ":many:"), "iterations"),
        (line("alice", "SCRAM-SHA-256", ALICE) + "!", "not base64"),
        (line("alice", "SCRAM-SHA-256", ScramCredential(b"short", *[b"k" * 32] * 2, 4096)), "salt"),
        (
            f"{line('a', 'SCRAM-SHA-256', ALICE)}\n{line('a', 'SCRAM-SHA-256', ALICE)}",
            "line 2 of --users has a",
        ),
    ],
)
def test_a_wrong_line_is_named_by_its_number_and_not_shown(text, what, tmp_path):
    file = tmp_path / "users"
    file.write_text(text)
    with pytest.raises(UsageError) as error:
        read_users(file)
    assert what in str(error.value)
    for part in (ALICE.salt, ALICE.stored_key, ALICE.server_key):
        assert base64.b64encode(part).decode() not in str(error.value)


def test_a_file_that_cannot_be_read_is_wrong_use(tmp_path):
    (tmp_path / "latin").write_bytes(b"\xe9:SCRAM-SHA-256:4096:a:b:c")
    for file, what in ((tmp_path / "absent", "No such file"), (tmp_path, "directory"), (tmp_path / "latin", "UTF-8")):
        with pytest.raises(UsageError, match=what):
            read_users(file)


@given(user=st.text(), mechanism=st.sampled_from(sorted(HASHES)), text_salt=st.booleans())
def test_an_unknown_user_has_a_stable_credential_of_the_common_shape(user, mechanism, text_salt):
    salt = b"1mvj0a9pqfa9lfvjvchtm6u9t1" if text_salt else bytes(range(200, 232))
    size = hashlib.new(HASHES[mechanism]).digest_size
    known = ScramCredential(salt, bytes(size), bytes(size), 8192)
    users = Credentials({(mechanism, "known"): known})
    found = users.find(mechanism, "?" + user)
    check_credential(mechanism, found)
    assert found == users.find(mechanism, "?" + user)
    assert found != users.find(mechanism, "?" + user + "x")
    assert (found.iterations, len(found.salt)) == (8192, len(salt))
    assert found.salt.isalnum() or not text_salt


def test_users_of_a_cluster_are_taken_and_those_that_cannot_be_used_are_left_out(caplog):
    def record(each, **other):
        fields = {"salt": each.salt, "stored_key": each.stored_key, "server_key": each.server_key}
        return m.UserScramCredentialRecord(**{**fields, "iterations": each.iterations, **other})

    found = of_cluster(
        {
            (1, "alice"): record(ALICE),
            (2, "bob"): record(BOB),
            (1, "bob"): record(BOB),
            (1, "eve"): record(ALICE, iterations=1),
            (3, "eve"): record(ALICE),
        }
    )
    assert found == {("SCRAM-SHA-256", "alice"): ALICE, ("SCRAM-SHA-512", "bob"): BOB}
    assert len(caplog.records) == 3


def test_credentials_do_not_print_their_keys():
    assert repr(ALICE) == "ScramCredential(iterations=4096)"
