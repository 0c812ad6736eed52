"""Examples that `sediment NAME --help` ends with: what one wants, and the command that does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

EXAMPLES: Mapping[str, Sequence[tuple[str, str]]] = MappingProxyType(
    {
        "compact": (
            ("what a run would do", "sediment compact --config /etc/kafka/server.properties --dry-run"),
            (
                "one topic, whatever its dirty ratio",
                "sediment compact --config /etc/kafka/server.properties --partition 'orders-*' --force",
            ),
            (
                "a copy without cluster metadata, with a page to look at",
                "sediment compact /backup/data --set orders:cleanup.policy=compact --report run.html",
            ),
        ),
        "completion": (
            ("bash, from now on", "sediment completion bash >> ~/.bashrc"),
            ("fish", "sediment completion fish > ~/.config/fish/completions/sediment.fish"),
        ),
        "delta-jars": (("before the first snapshot", "sediment delta-jars"),),
        "dump": (
            ("the segments of a partition", "sediment dump /var/lib/kafka/data/orders-0"),
            (
                "keys of some offsets, one JSON object a row",
                "sediment dump /var/lib/kafka/data/orders-0 --what records --offsets 100:200 --keys --json",
            ),
        ),
        "expire": (
            ("what retention would delete", "sediment expire --config /etc/kafka/server.properties --dry-run"),
            (
                "keep the records in Delta first",
                "sediment expire --config /etc/kafka/server.properties --archive /archive/kafka",
            ),
        ),
        "history": (
            ("the last five runs", "sediment history /var/lib/sediment/ledger --last 5"),
            ("one partition through all runs", "sediment history /var/lib/sediment/ledger --partition orders-0"),
        ),
        "plan": (
            ("why nothing is compacted", "sediment plan --config /etc/kafka/server.properties --partition 'orders-*'"),
            (
                "figures as compact will have them",
                "sediment plan --config /etc/kafka/server.properties --exact --report plan.html",
            ),
        ),
        "recover": (
            ("what a broker's start would repair", "sediment recover /var/lib/kafka/data --dry-run"),
            ("repair, eight partitions at a time", "sediment recover /var/lib/kafka/data --threads 8"),
        ),
        "snapshot": (
            (
                "the latest value of each key",
                "sediment snapshot /var/lib/kafka/data --partition 'orders-*' --to /tables/orders",
            ),
        ),
        "verify": (("a compacted copy against its source", "sediment verify /backup/before /backup/after"),),
        "warm-up": (("after an installation or an update", "sediment warm-up"),),
    }
)


def epilog(name: str) -> str | None:
    """The end of a command's help, None without examples; a line of its own keeps each command whole."""
    examples = EXAMPLES.get(name, ())
    paragraphs = [f"\b\n  {what}:\n    {command}" for what, command in examples]
    return "\n\n".join(["Examples:", *paragraphs]) if paragraphs else None
