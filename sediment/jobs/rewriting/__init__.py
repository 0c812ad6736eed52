"""The run of the commands that rewrite segments, and what only `erase` and `reencode` share.

    flow               the flow of a run, and what a command decides
    run                what its steps share; check, lock, read again, also for other commands that write in place
    destination        the steps that depend on where the new segments go: `in_place`, or `to_output`
    kept_originals     the catalogue of the files that a run keeps
    result             result of a task that cleans or rewrites a partition

    segment_rewriting  what `erase` and `reencode` have in common: plan, approve, rewrite segments, commit
    partition_task     their tasks: plan one partition, rewrite one segment, at the `TaskPlace` of its new files
    planned_partition  the selected partitions, and the partitions with a plan
    options, report    options of every such command; report of a partition, and the table for people

`compact` has its tasks and destinations in `jobs.cleaning`.
"""
