"""Shared code of the commands that write a new log directory with --output and leave their sources unchanged.

    partition_output   tasks: the files of one partition in its source and in the output; copies of unchanged files
    output_directory   the driver: open the sources, claim the output, write its checkpoints and the manifest

Each command decides how to write a partition; `engine.directory.output` defines the steps of every output, from the
claim to the manifest.
"""
