"""Shared code of the commands that rewrite segments and keep every offset.

    options            options of every such command, and `validate`
    partition_task     tasks: plan one partition, rewrite one segment, at the `TaskPlace` of its new files
    planned_partition  the selected partitions, and the partitions with a plan
    rewriting_run      the driver: open, list, plan, approve, rewrite, commit
    destination        the steps that depend on where the new segments go: `in_place`, or `to_output`
    report             report of a partition, and the table for people

Each command creates a `PartitionRewrite` for every partition, and makes its report from the results of the segments.
"""
