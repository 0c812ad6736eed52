"""Compressed records: `batch_codecs` handles one batch in any framing; kernels handle many batches in the usual one."""
