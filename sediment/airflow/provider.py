"""Description of the provider, for Airflow's list of providers."""

from __future__ import annotations

from typing import Any

from sediment.version import __version__


def get_provider_info() -> dict[str, Any]:
    """Return the description of this provider.

    Source: Airflow's documentation, custom provider packages; the schema is Airflow's `provider_info.schema.json`.
    """
    return {
        "package-name": "kafka-sediment",
        "name": "Sediment",
        "description": "Compacts, verifies and expires Apache Kafka log directories on Spark.",
        "versions": [__version__],
    }
