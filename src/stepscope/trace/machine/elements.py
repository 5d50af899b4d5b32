"""How translated functions read and write the elements of arrays."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from stepscope.trace.machine.kinds import LONG, REAL, TRUTH, Elements, Value


def place_of(builder: Any, elements: Elements, address: Any, index: Any) -> Any:
    """Adds the instructions that find an element; returns a pointer to it.

    Args:
        builder: Adds instructions.
        elements: What the array consists of.
        address: The address of the array.
        index: The number of the element.
    """
    size = ir.Constant(LONG.form, elements.dtype.itemsize)
    place = builder.add(address, builder.mul(index, size))
    return builder.inttoptr(place, _form_of(elements).as_pointer())


def read(builder: Any, elements: Elements, place: Any) -> Value:
    """Adds the instructions that read an element; returns its value."""
    form = _form_of(elements)
    code = builder.load(place, align=elements.dtype.itemsize, typ=form)
    if elements.kind is TRUTH:
        code = builder.icmp_unsigned("!=", code, ir.Constant(form, 0))
    elif form not in (LONG.form, REAL.form):
        extend = builder.sext if elements.dtype.kind == "i" else builder.zext
        code = extend(code, LONG.form)
    return Value(elements.kind, code)


def write(builder: Any, elements: Elements, place: Any, value: Value) -> None:
    """Adds the instructions that set an element to a value of its type."""
    form, code = _form_of(elements), value.code
    if elements.kind is TRUTH:
        code = builder.zext(code, form)
    elif form not in (LONG.form, REAL.form):
        code = builder.trunc(code, form)
    builder.store(code, place, align=elements.dtype.itemsize)


def _form_of(elements: Elements) -> Any:
    """Returns the form in LLVM that an element has in memory."""
    return REAL.form if elements.kind is REAL else ir.IntType(8 * elements.dtype.itemsize)
