"""The rule that a condition of `erase --where` selects the same records in each run, from the records alone.

    before analysis     no subquery: Spark opens the files and tables that it names as soon as it resolves it
                        a literal of a date or time begins with its year, so it is not 'now' or 'today'
    after analysis      every expression is deterministic, and is not a user's function
                        every leaf is a column or a constant, so it is not the current time, user or catalog
                        a constant string that becomes a date or time begins with its year

Every function that calls Java by the name of a class is not deterministic for Spark.

Invariant: errors name a function, never the text of the condition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sediment.segment_io.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
_LEAVES = frozenset(
    {"Literal", "AttributeReference", "NamedLambdaVariable", "CommonExpressionRef", "Pi", "EulerNumber"}
)
_TIMES = frozenset({"date", "timestamp", "timestamp_ntz"})
_LITERAL_OF_TIME = re.compile(r"\w+\s*['\"]\s*[+-]?\d{4}")
_YEAR = re.compile(r"\s*[+-]?\d{4}")


def check_parsed(session: SparkSession, condition: str) -> None:
    """Check a condition before Spark resolves it, which would read the tables of subqueries."""
    parsed = session._jsparkSession.sessionState().sqlParser().parseExpression(condition)
    for each in _nodes(parsed):
        if _is_a(session, each, "PlanExpression"):
            raise UsageError(
                "--where has a subquery, but an erasure is selected from the records alone",
                advice="write the rows of the subquery's result to a table, and give it with --verdicts",
            )
        if _is_literal_of_time(each) and not _LITERAL_OF_TIME.match(_text_of(each)):
            raise _time_of_the_run("a date or time without a year")


def check_resolved(session: SparkSession, frame: DataFrame) -> None:
    jvm: Any = session._jvm
    rules = jvm.org.apache.spark.sql.catalyst.optimizer
    plan = frame._jdf.queryExecution().analyzed()
    replaced = rules.ReplaceExpressions.apply(plan)  # many functions stand for expressions that are not their parts
    for each in [*_iterated(plan.expressions()), *_iterated(replaced.expressions())]:
        nodes = list(_nodes(each))
        for node in reversed(nodes):  # the innermost first, because the outer ones inherit what it is
            if _is_a(session, node, "UserDefinedExpression"):
                raise _not_repeatable(f"the function {node.prettyName()}, which is not Spark's own")
            if not node.deterministic():
                raise _not_repeatable(f"{node.prettyName()}, which is not a function of the record alone")
            if _is_a(session, node, "LeafExpression") and _class(node) not in _LEAVES:
                raise _not_repeatable(f"{node.prettyName()}, which depends on the run")
        if any(_is_time_from_text(node) for node in nodes):
            raise _time_of_the_run("a constant date or time without a year")
    if not rules.ComputeCurrentTime.apply(replaced).equals(replaced):
        raise _time_of_the_run("the current time")


def _not_repeatable(what: str) -> UsageError:
    return UsageError(
        f"--where has {what}, so a run could erase other records than its dry run showed",
        advice="use only columns, constants and functions of them; write a time as TIMESTAMP '2026-01-31 00:00:00'",
    )


def _time_of_the_run(what: str) -> UsageError:
    return _not_repeatable(f"{what}, which depends on the time of the run")


def _nodes(expression: Any) -> Iterator[Any]:
    yield expression
    yield from (node for child in _iterated(expression.children()) for node in _nodes(child))


def _iterated(scala: Any) -> Iterator[Any]:
    iterator = scala.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _is_a(session: SparkSession, node: Any, name: str) -> bool:
    jvm: Any = session._jvm
    return bool(jvm.java.lang.Class.forName(f"{_EXPRESSIONS}.{name}").isInstance(node))


def _class(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _is_literal_of_time(node: Any) -> bool:
    return _class(node) == "Literal" and node.dataType().typeName() in _TIMES


def _text_of(node: Any) -> str:
    origin = node.origin()
    if not (origin.sqlText().isDefined() and origin.startIndex().isDefined() and origin.stopIndex().isDefined()):
        return ""
    return str(origin.sqlText().get())[origin.startIndex().get() : origin.stopIndex().get() + 1]


def _is_time_from_text(node: Any) -> bool:
    if _class(node) != "Cast" or not node.foldable() or node.dataType().typeName() not in _TIMES:
        return False
    child = node.child()
    if child.dataType().typeName() != "string":
        return False
    try:
        text = child.eval(None)
    except Exception:  # Spark cannot compute it, so it is null, and matches nothing
        return False
    return text is not None and not _YEAR.match(str(text))
