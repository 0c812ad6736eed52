"""URIs as messages show them."""

from __future__ import annotations

import pytest

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.uris import without_credentials


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://key:pw@bucket/logs?secret_key=hush", "s3://bucket/logs"),
        ("s3:/key:pw@bucket/logs?secret_key=hush/people-0/0.log", "s3:/bucket/logs"),
        ("/work/s3:/key:pw@bucket/logs (offset 7)", "/work/s3:/bucket/logs (offset 7)"),
        ("s3://key:p/w@bucket/logs", "s3://bucket/logs"),
        ("s3://key:p@w@bucket/logs", "s3://bucket/logs"),
        ("s3://key:pw@one/a?x=hush, and gs://key@two/b?x=hush; stop", "s3://one/a, and gs://two/b; stop"),
        ("(file s3://bucket/a?x=hush)", "(file s3://bucket/a)"),
        ("Cannot parse URI: 's3://key:pw@bucket?x=hush'", "Cannot parse URI: 's3://bucket'"),
        ("abfss://box@account.example/path", "abfss://account.example/path"),
        ("hdfs://name:8020/a@b", "hdfs://name:8020/a@b"),
        ("a file://, s3:// or hdfs:// URI? me@example.org", "a file://, s3:// or hdfs:// URI? me@example.org"),
        ("/logs/really?/me@home", "/logs/really?/me@home"),
    ],
)
def test_a_uri_in_a_text_loses_its_user_password_and_query(text, shown):
    assert without_credentials(text) == shown


def test_an_error_shows_no_credentials_in_its_words_its_path_or_its_advice():
    uri = "s3://key:pw@bucket/a?x=hush"
    error = SedimentError(f"{uri} is wrong", path=uri.replace("://", ":/"), advice=f"leave out {uri}")
    assert str(error) == "s3://bucket/a is wrong (file s3:/bucket/a); leave out s3://bucket/a"
