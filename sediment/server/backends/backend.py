"""Backend: the logs of a server, with the handlers that read and write them.

* `ReadOnlyBackend` has directories that neither a broker nor this process changes.
* `LiveBackend` has directories of a single node that this process owns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.server.coordinator_log import CoordinatorTopic
from sediment.server.delayed import Timer
from sediment.server.groups.group_coordinator import GroupCoordinator
from sediment.server.groups.offset_store import GroupStore, OffsetStore
from sediment.server.requests import Handler
from sediment.server.server_config import ServerConfig
from sediment.server.topic_catalog import TopicCatalog
from sediment.server.transactions.transaction import Transaction

if TYPE_CHECKING:
    from sediment.server.log_metrics import LogMetrics  # loads the code of live logs


class Backend(Protocol):
    """Between `open` and `close`, the handlers may be called from any thread."""

    @property
    def catalog(self) -> TopicCatalog: ...
    @property
    def handled_at_once(self) -> frozenset[ApiKey]:
        """APIs whose requests a network thread handles itself.

        The handlers of these APIs are fast, and never wait for another thread or a flush.
        """

    @property
    def unadvertised(self) -> frozenset[ApiKey]:
        """APIs of which clients are not told; a client that sends such a request gets a response."""

    @property
    def offset_store(self) -> OffsetStore | None:
        """The store of committed offsets; if it is None, offsets are kept only in memory."""

    @property
    def group_store(self) -> GroupStore | None: ...
    @property
    def can_write(self) -> bool: ...
    @property
    def supported_features(self) -> Mapping[str, tuple[int, int]]: ...
    @property
    def failure(self) -> SedimentError | None:
        """The error that has made the backend unable to serve any request; None if it can serve requests."""

    def coordinator_topic(self, name: str) -> CoordinatorTopic: ...
    def create_topics(self, names: Collection[str]) -> None: ...
    def make_coordinator_topic(self, name: str) -> None: ...
    def handlers(
        self, timer: Timer, config: ServerConfig, coordinator: GroupCoordinator
    ) -> Sequence[Mapping[ApiKey, Handler]]:
        """Return the handlers of the APIs that depend on the backend; the caller must call this only once."""

    @property
    def offsets_retention_minutes(self) -> int | None:
        """The time after which committed offsets of a group without members expire; None if they never expire."""

    @property
    def transactional_id_expiration_ms(self) -> int | None:
        """The time after which an unused transactional id is removed; None if the ids never expire."""

    @property
    def static_configs(self) -> Mapping[str, str]: ...
    def start_deleting(self) -> None: ...
    def stop_deleting(self) -> None: ...
    def deletions(self) -> str: ...
    def log_metrics(self) -> LogMetrics | None: ...
    def load_transactions(
        self, stored: Mapping[str, Transaction], is_unreadable: Callable[[str], bool]
    ) -> Callable[[], Mapping[str, Transaction]]:
        """Load the stored transactions; return a function that returns their current states."""

    def stop_waiting(self) -> None:
        """Respond to all waiting requests; later requests do not wait."""

    def close(self) -> None: ...
