"""Re-encoding: all records of a partition are written again, with another codec or in larger batches.

    plan              the requested encoding, one task for each segment, and the results
    merging           the rule that decides which neighbouring batches may become one batch; it reads only headers
    reencode_kernels  the loop over the batches of a chunk
    batch_reencode    the driver of the loop in `reencode_kernels`
    scans             two forward scans over a segment or a cleaned group: the first chooses, the second encodes
    segment_reencode  one task, which re-encodes a segment and writes the result under `.part` names
    cleaned_batches   the batches of a cleaned group, which are encoded before they are written
    estimate          an estimate of the log's size after a re-encoding, from a sample of batches

No module here renames a file; the result is a prepared swap.
"""
