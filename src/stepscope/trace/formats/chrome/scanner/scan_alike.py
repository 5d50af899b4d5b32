"""Recognises events that are like a pattern (`scan_patterns.py`), and reads their numbers.

Whatever is recognised here would be read in full with the same result. A pattern was validated when
it was read, so what equals it is valid. Where an event differs, both must have digits:

* where the pattern has a number that goes to a column, the event has one of the same kind;
* in the arguments, `may_replace` says which digits can take the place of others. They make another
  number, or another string. Keys with columns have no digits, so other digits make no such key;
* after `0x`, which only strings have, hexadecimal digits can take the place of others.

Names, lanes, phases and everything else outside the arguments must be equal, byte for byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir

from stepscope.trace.formats.chrome.scanner.scan_bytes import (
    BACKSLASH,
    OPEN_OBJECT,
    PERIOD,
    ZERO,
    digit_length,
    hexadecimal_length,
    is_hexadecimal,
)
from stepscope.trace.formats.chrome.scanner.scan_patterns import (
    AFTER_ARGUMENTS,
    ARGUMENTS,
    CODES,
    COLUMN_SHIFT,
    CROWDED,
    DECIMAL,
    FIRST_STEP,
    KIND,
    KIND_SHIFT,
    LENGTH,
    NEGATIVE,
    NEXT,
    NONE,
    NUMBERS,
    POSITIVE,
    SLOT_BITS,
    SLOTS,
    TEXT,
    WAYS,
    latest_of,
    learn,
    pattern_at,
)
from stepscope.trace.formats.chrome.scanner.scan_rows import (
    CAPACITY,
    COLUMNS,
    DATA,
    END,
    VIEWS,
    put_row,
    put_view,
)
from stepscope.trace.formats.chrome.scanner.scan_values import (
    is_digit,
    nanoseconds_at,
    up_to_sixteen_digits,
)
from stepscope.trace.machine.helpers import as_long, jit_inline
from stepscope.trace.machine.instructions import (
    Data,
    Instruction,
    Ints,
    Longs,
    byte_at,
    int_at,
    load,
    long_at,
    put_int,
    put_long,
)
from stepscope.trace.machine.jit import jit
from stepscope.trace.machine.kinds import I64

HEAD_BYTES = 128
"""The beginning of an event by which its pattern is looked up."""
_WIDTH = 32  # bytes compared at once
_MOST_DIGITS = 16  # of an integer
_LONGEST_ESCAPE = 6  # bytes
_LONGEST_ADDRESS = 16  # hexadecimal digits
_X = ord("x")
_MOST_TRIES = 16

_BYTES = ir.VectorType(ir.IntType(8), _WIDTH)
_PARTS = ir.VectorType(ir.IntType(32), _WIDTH // 4)
_ODD = 0x9E3779B1
_FACTORS = (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xCA5A826395121157, 0xC2B2AE3D27D4EB4F)


def _slot_of_head(builder: Any, arguments: list[Any]) -> Any:
    """Adds the instructions that hash the bytes of a head, with zeros in place of digits."""

    def all_of(value: int) -> Any:
        return ir.Constant(_BYTES, [value] * _WIDTH)

    place, lanes = builder.add(*arguments), _PARTS.count
    total = ir.Constant(_PARTS, [0] * lanes)
    for number in range(HEAD_BYTES // _WIDTH):
        some = load(
            builder, builder.add(place, ir.Constant(I64.llvm_type, _WIDTH * number)), _BYTES
        )
        beyond = builder.sub(some, all_of(ZERO))
        some = builder.select(builder.icmp_unsigned("<", beyond, all_of(10)), all_of(0), some)
        factors = [_ODD * (2 * (lanes * number + lane) + 1) % 2**32 for lane in range(lanes)]
        product = builder.mul(builder.bitcast(some, _PARTS), ir.Constant(_PARTS, factors))
        total = builder.add(total, product)
    halves = builder.bitcast(total, ir.VectorType(I64.llvm_type, len(_FACTORS)))
    value = ir.Constant(I64.llvm_type, 0)
    for lane, factor in enumerate(_FACTORS):
        part = builder.extract_element(halves, ir.Constant(ir.IntType(32), lane))
        value = builder.add(value, builder.mul(part, ir.Constant(I64.llvm_type, factor)))
    value = builder.xor(value, builder.lshr(value, ir.Constant(I64.llvm_type, 32)))
    value = builder.mul(value, ir.Constant(I64.llvm_type, _FACTORS[1]))
    return builder.lshr(value, ir.Constant(I64.llvm_type, 64 - SLOT_BITS))


def _same_go_on(builder: Any, arguments: list[Any]) -> Any:
    first, second = (load(builder, address, _BYTES) for address in arguments)
    differ = builder.bitcast(builder.icmp_unsigned("!=", first, second), ir.IntType(_WIDTH))
    count = builder.cttz(differ, ir.Constant(ir.IntType(1), 0))
    return builder.zext(count, I64.llvm_type)


if TYPE_CHECKING:

    def slot_of_head(data: Data, at: int) -> int:
        """Returns which slot has the patterns of the event at `at`; reads `HEAD_BYTES` bytes."""

    def same_go_on(first: int, second: int) -> int:
        """Returns how many of the next bytes at two addresses are the same, 32 at most."""

else:
    slot_of_head = Instruction("slot_of_head", (I64, I64), I64, _slot_of_head)
    same_go_on = Instruction("same_go_on", (I64, I64), I64, _same_go_on)


@jit_inline
def may_replace(data: Data, at: int, known: int, found: int) -> bool:
    """Whether digits in the arguments may take the place of others, and so leave JSON valid.

    Args:
        at: Where the event begins to differ from the pattern. The bytes before are the same.
        known: How many digits the pattern has from there on, `_WIDTH` at most.
        found: How many the event has.
    """
    if _WIDTH in (known, found) or known + found == 0:
        return False
    for position in range(at - _LONGEST_ESCAPE + 1, at):
        if byte_at(data, position) == BACKSLASH:
            return False  # digits of an escape
    before = byte_at(data, at - 1)
    if is_digit(before):
        # A single 0 can be all of a number. It can go on only where it is no whole number, which
        # is so if the pattern's went on.
        second = byte_at(data, at - 2)
        return known > 0 or before != ZERO or is_digit(second) or second == PERIOD
    if known == 0 or found == 0:
        return False  # digits in one of them only
    return found == 1 or byte_at(data, at) != ZERO or before == PERIOD


@jit
def is_in_address(data: Data, at: int) -> bool:
    """Whether the bytes before a position are `0x` and hexadecimal digits, as of an address.

    Then the position is inside a string, as nothing else in JSON has an x.
    """
    first = at
    while at - first < _LONGEST_ADDRESS and is_hexadecimal(byte_at(data, first - 1)):
        first -= 1
    return byte_at(data, first - 1) == _X and byte_at(data, first - 2) == ZERO


@jit
def alike_end(
    data: Data, at: int, pattern: Longs, columns: Longs, stride: int
) -> tuple[int, int, int]:
    """Compares an event with a pattern, and writes the numbers that go to columns.

    It stays inside the block: a pattern has no zero bytes, of which the block has `PADDING` after
    its end, so no byte after these is compared. It stays inside the pattern: the last step ends it.

    Args:
        columns: Address of the event's row in the first column. It may have been written to even
            if the event is not like the pattern.
        stride: Distance between columns.

    Returns:
        Where the next event begins, or -1 if this one is not like the pattern; and where its
        arguments begin and end.
    """
    step, text = long_at(pattern, FIRST_STEP), long_at(pattern, TEXT)
    start = end = at
    is_inside = False
    while True:
        now = long_at(step, 0)
        step += 8
        rest = now & LENGTH
        while rest > 0:
            same = same_go_on(data + at, text)
            # With these constants, the processor need not know `same` to go on.
            if same >= rest:
                at += rest
                text += rest
                break
            if same == _WIDTH:
                at += _WIDTH
                text += _WIDTH
                rest -= _WIDTH
                continue
            at += same
            text += same
            rest -= same
            if not is_inside:
                return -1, 0, 0
            known, found = digit_length(text, 0), digit_length(data, at)
            if not may_replace(data, at, known, found):
                if not is_in_address(data, at):
                    return -1, 0, 0
                known, found = hexadecimal_length(text, 0), hexadecimal_length(data, at)
                if _WIDTH in (known, found) or known + found == 0:
                    return -1, 0, 0
            at += found
            text += known
            rest -= known
        kind, column = (now >> KIND_SHIFT) & KIND, now >> COLUMN_SHIFT
        if kind == DECIMAL:
            value, at = nanoseconds_at(data, at)
            if at < 0:
                return -1, 0, 0
            put_long(columns, column * stride, value)
        elif kind in (POSITIVE, NEGATIVE):
            found = digit_length(data, at)
            if found == 0 or found > _MOST_DIGITS or (found > 1 and byte_at(data, at) == ZERO):
                return -1, 0, 0
            value = as_long(up_to_sixteen_digits(data, at, found))
            at += found
            put_long(columns, column * stride, value if kind == POSITIVE else -value)
        elif kind == ARGUMENTS:
            start = at
            is_inside = True
        elif kind == AFTER_ARGUMENTS:
            end = at
            is_inside = False
        else:
            return at, start, end


@jit
def _slot_of(data: Data, at: int, end: int, table: Longs) -> Ints:
    """Returns the address of the slot that has the patterns of the event at `at`; 0 for none."""
    slots, head = long_at(table, SLOTS), slot_of_head(data, at)
    slot = slots + 4 * WAYS * head
    if int_at(slot, 0) != CROWDED:
        return slot
    if at + 2 * HEAD_BYTES > end:
        return 0
    longer = head ^ slot_of_head(data, at + HEAD_BYTES)
    return slots + 4 * WAYS * (longer + (1 << SLOT_BITS))


@jit_inline
def _put_first(slot: Ints, way: int, number: int) -> None:
    """Puts a pattern at the beginning of a slot; those before `way` move on."""
    while way > 0:
        put_int(slot, way, int_at(slot, way - 1))
        way -= 1
    put_int(slot, 0, number)


@jit
def _put_in_slot(data: Data, at: int, end: int, table: Longs, number: int) -> None:
    """Makes a pattern the first that is compared with events like the one at `at`.

    Args:
        at: Where the event begins; at least `HEAD_BYTES` before the end.
    """
    slot = _slot_of(data, at, end, table)
    is_short = slot < long_at(table, SLOTS) + 4 * WAYS * (1 << SLOT_BITS)
    if slot != 0 and is_short and int_at(slot, WAYS - 1) != NONE:
        put_int(slot, 0, CROWDED)
        slot = _slot_of(data, at, end, table)
    if slot != 0:
        _put_first(slot, WAYS - 1, number)


@jit
def find_of_name(block: Longs, table: Longs, name: int, at: int, row: int) -> int:
    """Looks for the pattern of an event among the latest ones of a name, or of one like it.

    It stays inside its arrays: `row` is one of the block, and its numbers may be overwritten.

    Args:
        row: The number of a row that is not used yet.

    Returns:
        The number of the pattern, or `NONE`.
    """
    data, stride = long_at(block, DATA), long_at(block, CAPACITY)
    columns = long_at(block, COLUMNS) + 8 * row
    number = int_at(latest_of(table, name), 0)
    for _ in range(_MOST_TRIES):
        if number == NONE:
            break
        pattern = pattern_at(table, number)
        after, _, _ = alike_end(data, at, pattern, columns, stride)
        if after >= 0:
            return number
        number = long_at(pattern, NEXT)
    return NONE


@jit
def scan_alike(block: Longs, table: Longs, at: int, row: int) -> tuple[int, int]:
    """Reads events as long as they are like patterns.

    It stays inside its arrays: it stops at the last row, and where less than a head is left.

    Returns:
        Where the first event begins that is not like a pattern, and the number of its row.
    """
    data, end, most_rows = long_at(block, DATA), long_at(block, END), long_at(block, CAPACITY)
    columns, views = long_at(block, COLUMNS), long_at(block, VIEWS)
    while row < most_rows and at + HEAD_BYTES <= end and byte_at(data, at) == OPEN_OBJECT:
        slot = _slot_of(data, at, end, table)
        after = -1
        start = stop = number = way = pattern = 0
        while way < WAYS and slot != 0:
            number = int_at(slot, way)
            if number < 0:
                break
            pattern = pattern_at(table, number)
            after, start, stop = alike_end(data, at, pattern, columns + 8 * row, most_rows)
            if after >= 0:
                break
            way += 1
        if after >= 0:
            if way > 0:
                _put_first(slot, way, number)
        elif pattern != 0:
            name = long_at(pattern, NUMBERS) & 0xFFFFFFFF  # most likely the event's, too
            number = find_of_name(block, table, name, at, row)
            if number != NONE:
                _put_in_slot(data, at, end, table, number)
                pattern = pattern_at(table, number)
                after, start, stop = alike_end(data, at, pattern, columns + 8 * row, most_rows)
        if after < 0:
            break
        numbers, codes = long_at(pattern, NUMBERS), long_at(pattern, CODES)
        put_row(block, row, numbers & 0xFFFFFFFF, numbers >> 32, codes & 0xFF, codes >> 8, at)
        put_view(views, row, data, start, stop)
        row += 1
        at = after
    return at, row


@jit
def remember(
    block: Longs, table: Longs, at: int, end: int, row: int, numbers: int, codes: int
) -> None:
    """Makes an event that was read in full be recognised the next time.

    It stays inside its arrays: `row` is one of the block, and its numbers may be overwritten.

    Args:
        table: Address of the description of the patterns, with notes of this event in order.
        at: Where the event begins; at least `HEAD_BYTES` before the end of the block.
        row: The number of a row that is not used yet.
        numbers: The numbers of its name and lane.
        codes: Its phase and flags.
    """
    data = long_at(block, DATA)
    number = find_of_name(block, table, numbers & 0xFFFFFFFF, at, row)
    if number == NONE:
        number = learn(data, at, end, numbers, codes, table)
    if number != NONE:
        _put_in_slot(data, at, long_at(block, END), table, number)
