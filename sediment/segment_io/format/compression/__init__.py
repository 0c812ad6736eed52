"""Compressed records: `batch_codecs` handles one batch in any framing, the kernels many in the usual framing."""
