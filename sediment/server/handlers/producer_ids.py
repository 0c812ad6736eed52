"""Ids of idempotent producers: InitProducerId without a transactional id.

Source: Kafka's KafkaApis.handleInitProducerIdRequest and TransactionCoordinator.handleInitProducerId.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.limited_log import LimitedLog
from sediment.server.live.producer_ids import ProducerIdManager
from sediment.server.requests import Handler, Request

_NO_EPOCH = -1


class ProducerIdHandlers:
    """Handlers that assign producer ids; a transactional producer gets none."""

    def __init__(self, producer_ids: ProducerIdManager) -> None:
        self._producer_ids = producer_ids
        self._log = LimitedLog(logging.getLogger(__name__))

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """Return the handlers by API."""
        return {ApiKey.INIT_PRODUCER_ID: self.init_producer_id}

    def init_producer_id(self, request: Request) -> Any:
        """Return a new id with epoch 0; as in Kafka, an id in the request is ignored."""
        transactional_id = request.message.transactional_id
        if transactional_id is not None:
            is_empty = not transactional_id
            return _failed(ErrorCode.INVALID_REQUEST if is_empty else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        try:
            producer_id = self._producer_ids.generate()
        except SedimentError as error:
            self._log.warning(f"no producer id can be assigned: {error}")
            return _failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return m.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _failed(code: ErrorCode) -> Any:
    return m.InitProducerIdResponse(error_code=code, producer_epoch=_NO_EPOCH)
