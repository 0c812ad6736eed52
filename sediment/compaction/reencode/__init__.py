"""Re-encoding a partition: it keeps all records, but in another codec or in larger batches.

    plan              the requested encoding, one task for each segment, and the results
    merging           the rule that decides, from their headers, which neighbours may become one batch
    reencode_kernels  the loop over the batches of a chunk
    batch_reencode    its driver
    scans             two forward scans over a segment or a cleaned group: choose, then encode
    segment_reencode  one task: a segment, and its replacement under `.part` names
    cleaned_batches   a group that a cleaning encodes before it writes it
    estimate          the size of the log after a re-encoding, from a sample of batches

`plan` and `merging` open no file.  Nothing here renames a file; the result is a prepared swap.
"""
