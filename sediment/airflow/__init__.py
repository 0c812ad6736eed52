"""Airflow provider: operators for the commands that run on a schedule, with the options of each command as arguments.

    from sediment.airflow.operators import SedimentCompactOperator

    SedimentCompactOperator(task_id="compact", log_dirs="/mnt/a/kafka-logs", config="/etc/kafka/server.properties")

    operators   the operators; this is the only module that imports Airflow
    arguments   conversion of options to arguments of the command line
    outcome     conversion of a command's JSON report to the summary or the error text of a task
    provider    the description of the provider, which Airflow finds by its entry point

Invariant: no module of this package imports the rest of Sediment, because Airflow and Spark have separate environments.
For Airflow, install this distribution without its dependencies.
"""
