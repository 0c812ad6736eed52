"""Result of a command in Python: its rows as Arrow and pandas, and as HTML in a notebook."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from sediment.jobs.reporting.arrow_rows import pandas_frame
from sediment.segment_io.printable import encodable

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_HEIGHT = "36rem"


class Result(ABC):
    """Result of a command with rows."""

    __slots__ = ()

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """Return the rows as a `pyarrow.Table`."""

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a `pandas.DataFrame`; integers stay exact, even in columns with missing values."""
        return pandas_frame(self.to_arrow())

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        return str(self.to_pandas().to_html(max_rows=20))


def page_in_notebook(page: str, title: str) -> str:
    """Return an HTML frame that shows the document `page`, whose styles and script do not affect the notebook."""
    return (
        f'<iframe title="{html.escape(title)}" sandbox="allow-scripts" '
        f'style="width: 100%; height: {_HEIGHT}; border: 0" srcdoc="{html.escape(encodable(page))}"></iframe>'
    )
