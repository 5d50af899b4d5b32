"""What findings about matrix products rest on."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence
from stepscope.analysis.hardware.tensor_cores import MatrixUnits, matrix_products, matrix_units


@dataclass(frozen=True)
class Products:
    """The matrix products of a window, on devices with units made for them.

    Attributes:
        table: Rows of `window.work`, as `matrix_products` gives them.
    """

    window: WindowView
    units: MatrixUnits
    table: pl.DataFrame


def products_of(subject: Subject) -> Products | None:
    """The matrix products of a subject; None where no such units are known to be there."""
    window = subject.window
    if window is None or not window.has_gpu:
        return None
    table = window.once(_products)
    units = matrix_units(window.trace, table)
    return None if units is None else Products(window, units, table)


def _products(window: WindowView) -> pl.DataFrame:
    return matrix_products(window.trace, window.work)


def evidence_of_time(products: Products, some: pl.DataFrame) -> tuple[Evidence, ...]:
    """How long some of the products take, of the step and of all of them."""
    window = products.window
    total_ns, all_ns = (int(table["dur_ns"].sum()) for table in (some, products.table))
    return (
        Evidence("time in them per step", window.per_device_step(total_ns), "ns"),
        Evidence("share of the step", window.device_share(total_ns), "share"),
        Evidence("of all matrix products", total_ns / max(1, all_ns), "share"),
    )
