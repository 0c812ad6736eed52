"""A listener with the handlers of a read-only server over real sockets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sediment.segment_io.fs import Fs
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.server.delayed import DelayedOperations, Timer
from sediment.server.handlers.configs import ConfigHandlers
from sediment.server.handlers.fetch import FetchHandlers
from sediment.server.handlers.list_offsets import OffsetHandlers
from sediment.server.handlers.log_dirs import LogDirHandlers
from sediment.server.handlers.metadata import MetadataHandlers, Node
from sediment.server.handlers.refused import READ_ONLY, RefusedHandlers
from sediment.server.read_only.catalog import Catalog, CatalogOptions, open_catalog
from sediment.server.requests import Handler
from tests.server.network.listeners import Client, listener

NODE = Node(7, "127.0.0.1", 9092)


def read_only_handlers(catalog: Catalog, timer: Timer, fetch_max_bytes: int) -> Mapping[ApiKey, Handler]:
    return {
        **MetadataHandlers(catalog, NODE).handlers(),
        **FetchHandlers(catalog, DelayedOperations(timer), fetch_max_bytes=fetch_max_bytes, logs_grow=False).handlers(),
        **OffsetHandlers(catalog).handlers(),
        **ConfigHandlers(catalog, NODE.id).handlers(),
        **LogDirHandlers(catalog).handlers(),
        **RefusedHandlers(READ_ONLY).handlers(),
    }


@contextlib.contextmanager
def served(
    *directories: Path, options: CatalogOptions | None = None, fetch_max_bytes: int = 1 << 25, fs: Fs | None = None
) -> Iterator[tuple[Client, Catalog]]:
    """Serve log directories until the end of the block; yield a connected client and the catalog."""
    catalog = open_catalog(directories, options or CatalogOptions(), fs or Fs())
    with (
        listener(make_handlers=lambda timer: read_only_handlers(catalog, timer, fetch_max_bytes)) as running,
        running.connect() as client,
    ):
        yield client, catalog
    catalog.close()


def only(items: Any) -> Any:
    (item,) = items
    return item
