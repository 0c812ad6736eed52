"""The replies that an engine leaves in a hand-off folder."""

from __future__ import annotations

import json
from pathlib import Path

from sediment.engine.directory.spool import CommitReply


def read_replies(folder: Path) -> list[CommitReply]:
    """Return the last reply for each partition, by the name of its file."""
    replies = []
    for path in sorted((*folder.glob("*.committed"), *folder.glob("*.refused"))):
        document = json.loads(path.read_bytes())
        replies.append(CommitReply(document["partition"], path.stem.rpartition(".")[2], document["refusal"]))
    return replies
