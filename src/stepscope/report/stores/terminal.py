"""The stores of traces on a terminal: size, last use, and trace."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from stepscope.report.outputs import Layout, Sink
from stepscope.report.units import decimal_size, plural
from stepscope.run.plain_text import escaped

if TYPE_CHECKING:
    from stepscope.trace.store.listing import StoreInfo


def write(stores: Sequence[StoreInfo], sink: Sink, _layout: Layout) -> None:
    """Write a line per store, and the total as a remark."""
    for store in stores:
        used = datetime.fromtimestamp(store.used, timezone.utc).astimezone()
        sink.write(
            f"{decimal_size(store.size_bytes):>10}  {used:%Y-%m-%d %H:%M}  "
            f"{escaped(store.source or str(store.path))}{_note(store)}\n"
        )
    if not stores:
        sink.remark("no stores")
        return
    total = sum(store.size_bytes for store in stores)
    sink.remark(f"{decimal_size(total):>10}  in {plural(len(stores), 'store')}")


def _note(store: StoreInfo) -> str:
    notes = [] if store.state.value == "complete" else [store.state.value]
    if store.is_orphan:
        notes.append("its trace is gone")
    return f"  ({', '.join(notes)})" if notes else ""
