"""What Spark's UI calls a job."""

from __future__ import annotations

import pytest

from sediment.jobs.spark.job_names import JobName, named_job, titled

LONG = "a" * 249 + "-12345"


@pytest.mark.parametrize(
    ("partitions", "title"),
    [
        (["orders-3"], "clean orders-3"),
        (["orders-3", "orders-4"], "clean orders-3 and 1 more"),
        (["orders-3", "orders-3", "orders-3"], "clean orders-3"),  # three segments of one partition
        ([LONG, "orders-4"], f"clean {'a' * 47}…{'a' * 6}-12345 and 1 more"),
    ],
)
def test_a_job_is_named_by_its_partitions(partitions: list[str], title: str) -> None:
    assert titled("clean", str)(partitions).title == title


def test_a_job_has_a_tag_for_its_run_and_for_each_of_few_partitions() -> None:
    assert titled("clean", str)(["a-0", "b-1"]).tags("run") == "run,a-0,b-1"
    assert titled("clean", str)([LONG]).tags("run") == f"run,{LONG}"
    assert titled("clean", str)([f"a-{number}" for number in range(9)]).tags("run") == "run"


def test_a_name_that_spark_would_take_for_two_tags_is_none() -> None:
    assert JobName("copy", ("", "a,b", "c-0")).tags("run") == "run,c-0"


def test_the_details_of_a_stage_name_every_partition_of_a_task() -> None:
    assert titled("clean", str)(["a-0", "b-1"]).details() == "a-0\nb-1"
    assert titled("clean", str)([LONG]).details() == LONG
    many = titled("search", str)([f"a-{number}" for number in range(130)]).details().splitlines()
    assert (len(many), many[127], many[128]) == (129, "a-127", "and 2 more")
    assert JobName("wait for executors").details() == "wait for executors"


def test_spark_knows_the_tags_of_a_job_and_forgets_them_after_it(sc) -> None:
    with named_job(sc, "run", JobName("clean a-0", ["a-0"])):
        assert set(sc.getJobTags()) == {"run", "a-0"}
        assert sc.getLocalProperty("spark.job.description") == "clean a-0"
        site = sc._jsc.sc().getCallSite()
        assert (site.shortForm(), site.longForm()) == ("clean a-0", "a-0")
    assert set(sc.getJobTags()) == set()
    assert sc.getLocalProperty("spark.jobGroup.id") is None
    assert sc.getLocalProperty("callSite.long") is None


def test_a_caller_who_has_named_the_jobs_of_a_thread_finds_these_names_again(sc) -> None:
    sc.setJobGroup("notebook", "cell 3")
    sc.addJobTag("mine")
    try:
        with named_job(sc, "run", JobName("clean a-0", ["a-0"])):
            assert sc.getLocalProperty("spark.jobGroup.id") == "run"
        assert sc.getLocalProperty("spark.jobGroup.id") == "notebook"
        assert sc.getLocalProperty("spark.job.description") == "cell 3"
        assert set(sc.getJobTags()) == {"mine"}
    finally:
        sc.clearJobTags()
        sc._jsc.clearJobGroup()
