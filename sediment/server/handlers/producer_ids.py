"""Ids of idempotent producers: InitProducerId without a transactional id.

Source: Kafka's KafkaApis.handleInitProducerIdRequest and TransactionCoordinator.handleInitProducerId.
"""

from __future__ import annotations

import logging
from typing import Any

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.limited_log import LimitedLog
from sediment.server.live.producer_ids import ProducerIdManager
from sediment.server.requests import Request

_NO_EPOCH = -1


class ProducerIdHandlers:
    def __init__(self, producer_ids: ProducerIdManager) -> None:
        self._producer_ids = producer_ids
        self._log = LimitedLog(logging.getLogger(__name__))

    def init_producer_id(self, _request: Request) -> Any:
        """Return a new id with epoch 0; as in Kafka, an id in the request is ignored."""
        try:
            producer_id = self._producer_ids.generate()
        except SedimentError as error:
            self._log.warning(f"no producer id can be assigned: {error}")
            return _failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return m.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _failed(code: ErrorCode) -> Any:
    return m.InitProducerIdResponse(error_code=code, producer_epoch=_NO_EPOCH)
