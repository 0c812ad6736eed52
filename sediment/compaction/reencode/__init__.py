"""Re-encoding a partition: the same records in another codec, or in larger batches.

    plan              what is asked for, one task a segment, and the result
    merging           which neighbours may become one batch, by their headers
    reencode_kernels  the loop over the batches of a chunk
    batch_reencode    its driver
    segment_reencode  one task: two forward scans, one new segment under `.part` names
    estimate          the size that it would leave, from a sample of batches

`plan` and `merging` open no file.  Nothing here renames a file; the result is a prepared swap.
"""
