"""Compressed records: `batch_codecs` handles one batch in any framing, the kernels many batches in the usual one."""
