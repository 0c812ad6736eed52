"""Compressed records: `batch_codecs` takes one batch of any codec; the kernels take many, of the common framing."""
