"""Compressed records: `batch_codecs` handles a batch in any framing, and the kernels many batches in the usual one."""
