"""Files that a command leaves for this user: traces of bugs, and reports that the ledger could not record."""

from __future__ import annotations

from pathlib import Path

import platformdirs

from sediment.segment_io.safe_paths import own_temporary_folder, safe_folder, write_private_file


def save_for_user(folder: str, name: str, text: str) -> Path | None:
    """Save `text` in a new file that only this user can read, and return its path; None if no place for it is safe."""
    for root in (platformdirs.user_state_path("sediment"), own_temporary_folder()):
        try:
            path = safe_folder(root / folder) / name
            write_private_file(path, text)
            return path
        except OSError:
            continue
    return None
