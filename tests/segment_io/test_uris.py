"""URIs as messages show them."""

from __future__ import annotations

import time
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.uris import public_uri, without_credentials

WITH_SECRETS = [
    ("s3://key:pw@bucket/logs?secret_key=hush", "s3://bucket/logs"),
    ("s3:/key:pw@bucket/logs?secret_key=hush/people-0/0.log", "s3:/bucket/logs"),
    ("S3://key:pw@bucket/logs", "S3://bucket/logs"),
    ("s3://key@bucket/logs", "s3://bucket/logs"),
    ("s3://key:p/w@bucket/logs", "s3://bucket/logs"),
    ("s3://key:p@w@bucket/logs", "s3://bucket/logs"),
    ("s3://key:p@w/x@bucket/logs", "s3://bucket/logs"),
    ("s3://k/ey:pw@bucket/logs", "s3://bucket/logs"),
    ("s3://key:12/sec@bucket/logs", "s3://bucket/logs"),
    ("s3://key:pa?ss@bucket/logs", "s3://(hidden)"),
    ("s3://key:pa#ss@bucket/logs", "s3://(hidden)"),
    ("s3://bucket/logs?secret_key=p@w", "s3://bucket/logs"),
    ("s3://bucket/logs#token=hush", "s3://bucket/logs"),
    ("gs://key:pw@bucket/logs", "gs://bucket/logs"),
    ("https://me:pw@host.example:9000/logs?x=hush", "https://host.example:9000/logs"),
    ("hdfs://me:pw@name:8020/logs", "hdfs://name:8020/logs"),
    ("hdfs://name:8020/a@b?x@y", "hdfs://name:8020/a@b"),
    ("abfss://box:hush@account.example/logs", "abfss://box@account.example/logs"),
    ("abfss://box:hu/s@h@account.example/logs", "abfss://box@account.example/logs"),
    ("abfss://box@account.example/logs?sas=p@w", "abfss://box@account.example/logs"),
    ("abfss://b/x:hush@account.example/logs", "abfss://account.example/logs"),
]
HARMLESS = [
    "hdfs://name:8020/a@b",
    "hdfs://[::1]:9000/x@y",
    "hdfs://nn1:8020,nn2:8020/a@b",
    "s3://bucket/a@b/orders-0",
    "abfss://c1@acct.dfs.core.windows.net/x",
    "abfss://c1@acct.dfs.core.windows.net/x@y",
    "wasbs://c1@acct.blob.core.windows.net/x",
    "file:///data@1",
    "file:/data@1",
    "file:///data@1?x#y",
    "/mnt/nas:/export@daily/orders-0",
    "/mnt/logs:/export@daily/orders-0",
    "nas:/export@daily/orders-0",
    "/logs/really?/me@home",
    "orders-0",
    "",
]


@pytest.mark.parametrize(("uri", "shown"), WITH_SECRETS)
def test_a_uri_loses_its_user_password_query_and_fragment(uri, shown):
    assert public_uri(uri) == shown
    assert public_uri(shown) == shown
    assert without_credentials(f"({uri}); see '{uri}': ok") == f"({shown}); see '{shown}': ok"


@pytest.mark.parametrize("uri", HARMLESS)
def test_a_uri_or_path_without_secrets_stays(uri):
    assert public_uri(uri) == uri
    assert without_credentials(f"({uri}); see '{uri}': ok") == f"({uri}); see '{uri}': ok"


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3://b/my dir?region=x&secret_key=hush", "s3://b/my dir"),
        ("s3://key:se cret@b/x", "s3://b/x"),
        ("s3://key:se\ncret@b/x", "s3://b/x"),
        ("s3://key:'s,e{}\"cret@b/x", "s3://b/x"),
        ("unknown://key:pw@b/x?y=hush", "unknown://b/x"),
    ],
)
def test_a_value_that_is_a_uri_may_contain_any_character(uri, shown):
    assert public_uri(uri) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/work/s3:/key:pw@bucket/logs (offset 7)", "/work/s3:/bucket/logs (offset 7)"),
        ("s3://key:pw@one/a?x=hush, and gs://key@two/b?x=hush; stop", "s3://one/a, and gs://two/b; stop"),
        ("s3://key:pw@one/a,s3://key:pw@two/b", "s3://one/a,s3://two/b"),
        ("a file://, s3:// or hdfs:// URI? me@example.org", "a file://, s3:// or hdfs:// URI? me@example.org"),
        ('{"dir":"hdfs://nn:8020","owner":"x@y.z"}', '{"dir":"hdfs://nn:8020","owner":"x@y.z"}'),
        ("{dir=s3://bucket,owner=x@y.z}", "{dir=s3://bucket,owner=x@y.z}"),
        ("Cannot parse URI: 's3://b/my dir?x=hush' at 9", "Cannot parse URI: 's3://b/my dir' at 9"),
        (r"a line\ns3:/key:pw@bucket/a\ns3://key:pw@bucket/a", r"a line\ns3:/bucket/a"),
        ("don't use s3://key:pw@b/x, it's wrong", "don't use s3://b/x, it's wrong"),
    ],
)
def test_each_uri_in_a_text_loses_its_credentials(text, shown):
    assert without_credentials(text) == shown


@pytest.mark.parametrize(
    "repeated", ["a", "s3:/", "s3://", "'s3://", "\"s3://'s3://", "s3://a:b@", "a.b+c-", "s3://a,", "\\n"]
)
def test_a_text_of_a_megabyte_takes_linear_time(repeated):
    text = repeated * (1_000_000 // len(repeated))
    started = time.process_time()
    without_credentials(text)
    public_uri(text)
    assert time.process_time() - started < 5


ANY = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=8, max_size=40)
SAFE = st.text("ABCXYZ019", min_size=1, max_size=20)
SCHEMES = st.sampled_from(["s3", "s3a", "gs", "abfs", "abfss", "wasbs", "https", "unknown"])


def written(secret: str, how: str) -> str:
    return {"raw": secret, "encoded": quote(secret, safe=""), "partly": quote(secret, safe="/@")}[how]


@given(SCHEMES, st.one_of(SAFE, ANY), ANY, st.sampled_from(["raw", "encoded", "partly"]), st.booleans())
@example("s3", "K", "12/a@secret", "raw", True)
@example("s3", "K", "pa?ss#a@secret", "raw", True)
@example("abfss", "c:d", "a@secret", "raw", False)
@example("s3", "u?v", "/////secret@", "raw", False)
def test_no_piece_of_a_secret_stays(scheme, user, secret, how, has_query):
    secret = written(secret, how)
    as_password = f"{scheme}://{written(user, how)}:{secret}@~/~{'?a=~' if has_query else ''}"
    as_option = f"{scheme}://~/~?a=~&secret_key={secret}&b=~"
    as_fragment = f"{scheme}://~/~#{secret}"
    # The user may contain the same characters as the secret, and an Azure container looks like a user.
    known = f"{scheme}://~/~ (hidden) {written(user, how)}@"
    pieces = {secret[start : start + 4] for start in range(len(secret) - 3)}
    for uri in (as_password, as_option, as_fragment):
        shown = public_uri(uri)
        assert not [piece for piece in pieces if piece in shown and piece not in known], shown


def test_an_error_shows_no_credentials_in_its_words_its_path_or_its_advice():
    uri = "s3://key:pw@bucket/a?x=hush"
    error = SedimentError(f"{uri} is wrong", path=uri.replace("://", ":/"), advice=f"leave out {uri}")
    assert str(error) == "s3://bucket/a is wrong (file s3:/bucket/a); leave out s3://bucket/a"
    assert str(SedimentError("wrong", path="s3:/b/my dir?x=hush")) == "wrong (file s3:/b/my dir)"
