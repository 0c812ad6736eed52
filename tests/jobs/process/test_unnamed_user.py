"""Processes whose user id has no name, as in containers of OpenShift."""

from __future__ import annotations

import os
import tempfile

import pytest

from sediment.jobs.process.unnamed_user import give_home, variables_for_spark


@pytest.mark.parametrize(
    ("given", "name", "options"),
    [
        ({"HOME": "/home/kafka"}, "4321", "-Duser.home=/home/kafka"),
        ({"HOME": "/", "HADOOP_USER_NAME": "kafka"}, "kafka", "-Duser.home=/"),
        ({"SPARK_USER": "spark", "HADOOP_USER_NAME": "kafka", "HOME": "/"}, "spark", "-Duser.home=/"),
        ({"SPARK_SUBMIT_OPTS": "-Xmx1g"}, "4321", f"-Xmx1g -Duser.home={tempfile.gettempdir()}"),
        ({"SPARK_SUBMIT_OPTS": "-Duser.home=/srv", "HOME": "/x"}, "4321", "-Duser.home=/srv"),
    ],
)
def test_a_user_id_without_a_name_gets_one(
    given: dict[str, str], name: str, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert variables_for_spark(given) == {}

    without_a_name(monkeypatch)
    assert variables_for_spark(given) == {"SPARK_USER": name, "HADOOP_USER_NAME": name, "SPARK_SUBMIT_OPTS": options}


def without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_uid: int) -> None:
        raise KeyError("uid not found")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.setattr("os.getuid", lambda: 4321)


def test_without_a_home_the_root_is_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    give_home()
    assert "HOME" not in os.environ
    without_a_name(monkeypatch)
    monkeypatch.setenv("HOME", "/srv")
    give_home()
    assert os.environ["HOME"] == "/srv"
    monkeypatch.delenv("HOME")
    give_home()
    assert os.environ.pop("HOME") == "/"
