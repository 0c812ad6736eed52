"""Cleaning of partitions by Spark tasks, in place or into an output: the parts of `compact`.

options, estimates  options and tasks; what the tasks will read and leave
task, splits        tasks: clean one partition, or one split of a partition
in_place            the driver: choose, clean, commit; with `limits`, `hand_off` and `commit_threads`
to_output           the driver: clean and copy into an output; its tasks are in `output_task`
report              reports of partitions

`rewriting.flow` is the flow of the run.
"""
