"""Subjects of an erasure: the keys, the condition or the table that selects the records.

    file of keys     text     one key a line, UTF-8
                     hex      one key a line, as hexadecimal digits
                     base64   one key a line

Invariant: errors name the line of a file, never its content.
"""

from __future__ import annotations

import os
from codecs import BOM_UTF8
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sediment.compaction.rewrite.suppression import subject_hmac
from sediment.jobs.command_line.key_formats import KEY_FORMAT_ADVICE, TEXT, decode_key
from sediment.jobs.process.input_files import MOST_LIST_BYTES, MOST_TEXT_BYTES, read_input_file
from sediment.segment_io.errors import UsageError
from sediment.segment_io.fs import Fs
from sediment.segment_io.safe_paths import warn_of_readers

_TEXT_LINES_ADVICE = (
    "write the keys in UTF-8 without a byte order mark and end each line with a line feed only, or use --key-format hex"
)
_LEAST_SECRET_BYTES = 16
_OWNER_ONLY = 0o600


@dataclass(frozen=True, slots=True, repr=False)
class Keys:
    values: tuple[bytes, ...]

    def hmacs(self, secret: bytes) -> tuple[str, ...]:
        return tuple(sorted(subject_hmac(secret, key) for key in self.values))


@dataclass(frozen=True, slots=True, repr=False)
class Condition:
    text: str

    def hmacs(self, secret: bytes) -> tuple[str, ...]:
        return (subject_hmac(secret, self.text.encode()),)


def read_keys(file: Path, key_format: str) -> Keys:
    keys = set()
    for number, line in enumerate(_read_lines(file), 1):
        try:
            if key_format == TEXT and (line.endswith(b"\r") or (number == 1 and line.startswith(BOM_UTF8))):
                raise ValueError
            keys.add(decode_key(line, key_format))
        except ValueError:  # without a cause, because the text of the cause would quote the line
            advice = _TEXT_LINES_ADVICE if key_format == TEXT else KEY_FORMAT_ADVICE[key_format]
            raise UsageError(f"line {number} is not in format {key_format}", path=str(file), advice=advice) from None
    return Keys(tuple(sorted(keys)))


def _read_lines(file: Path) -> list[bytes]:
    warn_of_readers(file, "--keys-file")
    lines = read_input(file, "--keys-file").removesuffix(b"\n").split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise UsageError(f"line {number} is empty", path=str(file), advice="write one key a line")
    return lines


def read_condition(given: str) -> Condition:
    """Return the condition of `--where`: SQL, or `@FILE` for the text of a file."""
    text = given
    if given.startswith("@"):
        try:
            text = read_input(Path(given[1:]), "--where", MOST_TEXT_BYTES).decode()
        except UnicodeDecodeError:
            raise UsageError("the condition is not UTF-8", path=given[1:], advice="write it in UTF-8") from None
    if not text.strip():
        raise UsageError("--where is empty", advice="give a condition on the columns of the table records")
    return Condition(text.strip())


def read_secret(file: Path) -> bytes:
    """Return the secret for HMACs: the content of the file without its last line feed."""
    warn_of_readers(file, "--secret-file")
    secret = read_input(file, "--secret-file", MOST_TEXT_BYTES).removesuffix(b"\n")
    if len(secret) < _LEAST_SECRET_BYTES:
        raise UsageError(
            f"the secret has {len(secret)} bytes, but needs at least {_LEAST_SECRET_BYTES}",
            path=str(file),
            advice="make one with: openssl rand -hex 32",
        )
    return secret


def read_replacement(file: Path) -> bytes:
    return read_input(file, "--replacement")


def write_private(file: Path, lines: Iterable[bytes]) -> None:
    """Replace `file` with `lines`, durably; the new file has mode 0600 from the start."""
    unfinished = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    try:
        with open(descriptor, "wb") as target:
            target.writelines(lines)
            target.flush()
            os.fsync(target.fileno())
        unfinished.replace(file)
        Fs().sync_directory(file.parent)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def read_input(file: Path, option: str, most_bytes: int = MOST_LIST_BYTES) -> bytes:
    return read_input_file(file, most_bytes, option, advice="name a file that this user may read")
