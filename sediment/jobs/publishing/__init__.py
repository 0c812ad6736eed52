"""The common part of commands that write a new log directory with --output and leave their sources unchanged.

    partition_output   tasks: the files of one partition in its source and in the output; copies of unchanged files
    output_directory   the driver: open the sources, claim the output, write its checkpoints and the manifest

A command decides how each partition is written; `engine.directory.output` defines the steps of every output, from its
claim to its manifest.
"""
