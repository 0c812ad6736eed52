"""Compressed records: `batch_codecs` handles one batch of any codec, the kernels many of the common framing."""
