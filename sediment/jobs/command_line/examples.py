"""Examples at the end of `sediment NAME --help`; each has a purpose and a command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

EXAMPLES: Mapping[str, Sequence[tuple[str, str]]] = MappingProxyType(
    {
        "compact": (
            ("show what a run would do", "sediment compact --config /etc/kafka/server.properties --dry-run"),
            (
                "compact some topics and ignore their dirty ratio",
                "sediment compact --config /etc/kafka/server.properties --partition 'orders-*' --force",
            ),
            (
                "compact a copy without cluster metadata, and write an HTML report",
                "sediment compact /backup/data --set orders:cleanup.policy=compact --report run.html",
            ),
        ),
        "adopt": (
            ("show what would be adopted", "sediment adopt /var/lib/kafka/data --dry-run"),
            ("adopt the partitions, so that a broker can start", "sediment adopt /var/lib/kafka/data --yes"),
        ),
        "clone": (
            ("let a broker start on a backup", "sediment clone /backup/kafka-logs --to /var/lib/restored"),
            (
                "clone some topics for a test cluster, and rename one of them",
                "sediment clone /backup/kafka-logs --to /var/lib/test --topic 'orders*' --rename orders=orders_test",
            ),
            ("compare a clone with its manifest", "sediment clone --check /var/lib/restored"),
        ),
        "completion": (
            ("install for bash", "sediment setup completion bash >> ~/.bashrc"),
            ("install for fish", "sediment setup completion fish > ~/.config/fish/completions/sediment.fish"),
        ),
        "demo": (
            ("plan, compact and verify a directory that Kafka wrote", "sediment demo"),
            ("only write this directory, to try other commands on it", "sediment demo scratch --prepare"),
        ),
        "delta-jars": (("fetch the JARs before the first snapshot", "sediment setup delta-jars"),),
        "doctor": (
            ("check the machine", "sediment doctor"),
            ("check a broker's directories and settings too", "sediment doctor --config /etc/kafka/server.properties"),
        ),
        "dump": (
            ("list the segments of a partition", "sediment dump /var/lib/kafka/data/orders-0"),
            (
                "print the keys at some offsets, one JSON object per record",
                "sediment dump /var/lib/kafka/data/orders-0 --what records --offsets 100:200 --keys --json",
            ),
            (
                "print the last ten messages with the key order-17 from each partition, in kcat's format",
                "sediment dump '/var/lib/kafka/data/orders-*' -f '%p %o %k %s\\n' --last 10 --key order-17",
            ),
            ("show the lag of consumer groups", "sediment dump /var/lib/kafka/data --what groups"),
            (
                "show the config of a topic, and the source of each value",
                "sediment dump /var/lib/kafka/data --what topics --partition 'orders-*' --config "
                "/etc/kafka/server.properties",
            ),
            ("print messages as a broker appends them", "sediment dump /var/lib/kafka/data/orders-0 --last 0 --follow"),
        ),
        "erase": (
            (
                "count the records with the keys in a file",
                "sediment erase --config /etc/kafka/server.properties --keys-file keys.txt --dry-run",
            ),
            (
                "erase these records, and write signed evidence",
                "sediment erase --config /etc/kafka/server.properties --keys-file keys.txt --evidence erased.json "
                "--secret-file secret --signing-key key.pem",
            ),
            (
                "check the evidence",
                "sediment erase /var/lib/kafka/data --check erased.json --public-key key.pub",
            ),
        ),
        "expire": (
            ("show what retention would delete", "sediment expire --config /etc/kafka/server.properties --dry-run"),
            (
                "archive the records in a Delta table first",
                "sediment expire --config /etc/kafka/server.properties --archive /archive/kafka",
            ),
        ),
        "history": (
            ("show the last five runs", "sediment history /var/lib/sediment/ledger --last 5"),
            ("show one partition in all runs", "sediment history /var/lib/sediment/ledger --partition orders-0"),
        ),
        "originals": (("list what can be undone", "sediment originals /var/lib/kafka-originals"),),
        "plan": (
            (
                "explain why nothing is compacted",
                "sediment plan --config /etc/kafka/server.properties --partition 'orders-*'",
            ),
            (
                "compute exact figures",
                "sediment plan --config /etc/kafka/server.properties --exact --report plan.html",
            ),
        ),
        "recover": (
            ("show what a broker would repair at its start", "sediment recover /var/lib/kafka/data --dry-run"),
            ("repair eight partitions at a time in each directory", "sediment recover /var/lib/kafka/data --threads 8"),
            (
                "show which hanging transactions can be aborted",
                "sediment recover /var/lib/kafka/data --abort-open-transactions --dry-run",
            ),
        ),
        "reencode": (
            (
                "show the size of the logs before and after `reencode`",
                "sediment reencode --config /etc/kafka/server.properties --codec zstd --dry-run",
            ),
            (
                "merge small batches, compress them with zstd, and keep the replaced files",
                "sediment reencode /var/lib/kafka/data --codec zstd --level 9 --batch-bytes 64k --keep-originals /keep",
            ),
        ),
        "restore": (
            (
                "show what undoing a run would change",
                "sediment restore /var/lib/kafka/data --from /var/lib/kafka-originals --run 8e92ab2e1b9f --dry-run",
            ),
            (
                "undo all runs that began at or after a time",
                "sediment restore /var/lib/kafka/data --from /var/lib/kafka-originals --as-of 2026-11-22T18:00:00Z",
            ),
        ),
        "serve": (
            ("let clients on this machine read a backup", "sediment serve /backup/data --read-only"),
            (
                "serve a single node's directory in place of its broker",
                "sediment serve /var/lib/kafka/data --flush-acks",
            ),
            (
                "compare a topic before and after a compaction",
                "sediment serve /backup/before /backup/after --read-only --as old-orders=/backup/before:orders",
            ),
            (
                "let other machines read, with TLS and the users of the cluster",
                "sediment serve /backup/data --read-only --listen 0.0.0.0:9093 --advertise backup.example:9093 "
                "--tls-cert cert.pem --tls-key key.pem",
            ),
        ),
        "snapshot": (
            (
                "write the latest value of each key",
                "sediment snapshot /var/lib/kafka/data --partition 'orders-*' --to /tables/orders",
            ),
        ),
        "vacuum": (
            (
                "remove the files of runs that ended more than a week ago",
                "sediment vacuum originals --older-than 7d",
            ),
            ("keep the files of one run", "sediment vacuum originals --run 8e92ab2e1b9f --pin audit"),
        ),
        "verify": (("compare a compacted copy with its source", "sediment verify /backup/before /backup/after"),),
        "warm-up": (("prepare the machine after an installation or an update", "sediment setup warm-up"),),
    }
)


def epilog(name: str) -> str | None:
    examples = EXAMPLES.get(name, ())
    paragraphs = [f"\b\n  {what}:\n    {command}" for what, command in examples]
    return "\n\n".join(["Examples:", *paragraphs]) if paragraphs else None
