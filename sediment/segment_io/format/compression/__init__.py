"""Compressed records: `batch_codecs` handles a batch in any framing; the kernels handle many in the usual framing."""
