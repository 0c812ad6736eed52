"""`sediment`, but `compact` corrupts its output in a log directory that is named `tampered`."""

import sys
from pathlib import Path

from sediment.jobs.cli import main


def corrupt_log(log_dir: Path) -> None:
    log = next(path for path in sorted(log_dir.glob("plain-*/*.log")) if path.stat().st_size)
    content = bytearray(log.read_bytes())
    content[-1] ^= 1
    log.unlink()  # its inode may be that of a file that is kept
    log.write_bytes(content)


if __name__ == "__main__":
    log_dir = Path(sys.argv[2])
    try:
        main()
    finally:
        if sys.argv[1] == "compact" and log_dir.name == "tampered":
            corrupt_log(log_dir)
