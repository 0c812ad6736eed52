"""Compressed records: `batch_codecs` handles one batch in any framing; kernels handle many in the usual framing."""
