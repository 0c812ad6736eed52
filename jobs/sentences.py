"""Errors as people and programs are told them: a reason code and one sentence."""

from __future__ import annotations

import errno

from sediment.segment_io.errors import SedimentError


def told(error: SedimentError | OSError) -> tuple[str, str]:
    """Reason code and sentence of an error: `CorruptBatchError` is `corrupt-batch`."""
    if isinstance(error, SedimentError):
        return error.reason_code, str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "no-space", f"the disk is full ({error.filename}); free some space and run again"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "no-permission", f"no permission for {error.filename}; run as the broker's user or as root"
    return "io-error", f"{error.strerror or error} ({error.filename})"
