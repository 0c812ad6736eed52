"""Commands that rewrite segments in place and keep every offset: what they share.

    options         options of every such command, and `validate`
    partition_task  tasks: plan one partition, rewrite one segment
    rewriting_run   the driver: lock, list, plan, approve, rewrite, commit
    report          report of a partition, and the table for people

A command gives each partition a `PartitionRewrite`, and makes its report from the results of the segments.
"""
