"""Airflow provider: operators for the commands that run on a schedule, with the options of each command as arguments.

    from sediment.airflow.operators import SedimentCompactOperator

    SedimentCompactOperator(task_id="compact", log_dirs="/mnt/a/kafka-logs", config="/etc/kafka/server.properties")

    operators   the operators; the only module that imports Airflow
    arguments   options as arguments of the command line
    outcome     the JSON report of a command, as the summary of a task and the error text of a failure
    provider    description of the provider, which Airflow finds by its entry point

Invariant: nothing here imports the rest of Sediment, because Airflow and Spark have separate environments.  For
Airflow, install this distribution without its dependencies.
"""
