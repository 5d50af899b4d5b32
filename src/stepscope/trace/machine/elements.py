"""How compiled functions read and write the elements of arrays."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from stepscope.trace.machine.kinds import BOOL, F64, I64, Elements, Value


def place_of(builder: Any, elements: Elements, address: Any, index: Any) -> Any:
    """Adds the instructions that find an element; returns a pointer to it."""
    size = ir.Constant(I64.llvm_type, elements.dtype.itemsize)
    place = builder.add(address, builder.mul(index, size))
    return builder.inttoptr(place, _llvm_type_of(elements).as_pointer())


def read(builder: Any, elements: Elements, place: Any) -> Value:
    """Adds the instructions that read an element; returns its value."""
    llvm_type = _llvm_type_of(elements)
    code = builder.load(place, align=elements.dtype.itemsize, typ=llvm_type)
    if elements.kind is BOOL:
        code = builder.icmp_unsigned("!=", code, ir.Constant(llvm_type, 0))
    elif llvm_type not in (I64.llvm_type, F64.llvm_type):
        extend = builder.sext if elements.dtype.kind == "i" else builder.zext
        code = extend(code, I64.llvm_type)
    return Value(elements.kind, code)


def write(builder: Any, elements: Elements, place: Any, value: Value) -> None:
    """Adds the instructions that set an element to a value of its type."""
    llvm_type, code = _llvm_type_of(elements), value.code
    if elements.kind is BOOL:
        code = builder.zext(code, llvm_type)
    elif llvm_type not in (I64.llvm_type, F64.llvm_type):
        code = builder.trunc(code, llvm_type)
    builder.store(code, place, align=elements.dtype.itemsize)


def _llvm_type_of(elements: Elements) -> Any:
    return F64.llvm_type if elements.kind is F64 else ir.IntType(8 * elements.dtype.itemsize)
