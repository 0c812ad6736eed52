"""The parts of `plan`: what compaction and retention would do with each partition.

report  the plan of a partition, and the report of a run
task    tasks: view a partition, apply the rules, take a sample
driver  list and select the partitions, run the tasks; with --exact, clean in memory
text    the table, and the explanations below it
"""
