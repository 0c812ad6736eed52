"""Re-encoding: all records of a partition are written again, with another codec or in larger batches.

    plan              the requested encoding, one task for each segment, and the results
    merging           the rule that decides from headers which neighbouring batches may become one
    reencode_kernels  the loop over the batches of a chunk
    batch_reencode    the driver of that loop
    scans             two forward scans over a segment or a cleaned group: one chooses, one encodes
    segment_reencode  one task: a segment, and its replacement under `.part` names
    cleaned_batches   the batches of a cleaned group, which are encoded before they are written
    estimate          the size of the log after a re-encoding, from a sample of batches

`plan` and `merging` open no file.  No module here renames a file; the result is a prepared swap.
"""
