"""Random programs of the part of Python that is translated, and what Python makes of them.

Machine code wraps signed numbers at 64 bits, which its page says. So the reference is the same text
with `wrap(...)` around each of their operations; everything else is Python's own.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HEADER = """
from __future__ import annotations
import numpy as np
import numpy.typing as npt
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.helpers import jit_helper
SEVEN = 7
LARGE = 2**62
x = 10
"""
VALUES = (0, 1, -1, 2, 3, 5, 62, 63, 64, 65, -64, 2**31, 2**62, 2**63 - 1, 2**63 - 2, -(2**63))
NAMES = ("x", "y", "z", "k")
LENGTH = 4


def wrap(number: Any) -> int:
    """A number as 64 bits hold it."""
    return (int(number) + 2**63) % 2**64 - 2**63


def at(index: int) -> int:
    """An index; the page says that one below 0 lies outside an array."""
    if index < 0:
        raise IndexError(index)
    return index


@dataclass(frozen=True)
class Program:
    """A random program.

    Attributes:
        seed: Where it comes from.
        text: Its text.
        reference: Its text with numbers that wrap.
    """

    seed: int
    text: str
    reference: str

    def load(self, folder: Path) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The program as functions: to translate, and to run as Python."""
        found = []
        for kind, text in (("plain", self.text), ("wrapped", self.reference)):
            path = folder / f"{kind}_{self.seed}.py"
            path.write_text(text)
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            module.wrap, module.at = wrap, at  # type: ignore[attr-defined]
            spec.loader.exec_module(module)
            found.append(module.program)
        return found[0], found[1]

    def inputs(self) -> Iterator[tuple[list[int], tuple[int, int]]]:
        """What to run it on."""
        dice = random.Random(self.seed)
        for _ in range(6):
            numbers = [dice.choice(VALUES) for _ in range(LENGTH)]
            yield numbers, (dice.choice(VALUES), dice.choice(VALUES))

    @staticmethod
    def outcome(function: Callable[..., Any], numbers: list[int], arguments: Any) -> Any:
        """The result and the array afterwards, or which error it was."""
        array: Any = np.array(numbers, np.int64)
        # Python's own numbers do not wrap, and do not warn.
        given = list(numbers) if function.__class__.__name__ == "function" else array
        try:
            result = function(given, *arguments)
        except (IndexError, ValueError, ZeroDivisionError, NameError) as error:
            return type(error).__name__
        return result if result is None else int(result), list(map(int, given))


def random_program(seed: int) -> Program:
    """A program; the same for the same number."""
    texts = []
    for is_reference in (False, True):
        texts.append(_Writer(random.Random(seed), is_reference=is_reference).program())
    return Program(seed, *texts)


class _Writer:
    def __init__(self, dice: random.Random, *, is_reference: bool) -> None:
        self.dice = dice
        self.is_reference = is_reference
        self.lines: list[str] = []
        self.loops = 0
        self.fuel = 0

    def program(self) -> str:
        self.helper()
        self.lines.append("def program(a: Written[np.int64], k: int, m: int) -> int:")
        for name in NAMES[:3]:
            if self.dice.random() < 0.95:
                self.lines.append(f"    {name} = {self.number(1)}" if name != "x" else "    x = k")
        self.lines.append("    fuel = 40")
        self.body("    ", self.dice.randint(2, 6), 0)
        if self.dice.random() < 0.95:
            self.lines.append(f"    return {self.number(2)}")
        return HEADER + "\n".join(self.lines) + "\n"

    def helper(self) -> None:
        self.lines.append("@jit_helper")
        self.lines.append("def helper(a: Written[np.int64], k: int, m: int) -> int:")
        self.lines.append("    x = m")
        self.lines.append("    y = z = k")
        if self.dice.random() < 0.5:
            self.lines.append(f"    a[{self.index()}] = {self.number(1, calls=False)}")
        self.lines.append(f"    return {self.number(1, calls=False)}")

    def body(self, indent: str, count: int, depth: int) -> None:
        for _ in range(count):
            self.statement(indent, depth)

    def statement(self, indent: str, depth: int) -> None:
        kind = self.dice.randrange(12 if depth < 3 else 6)
        add, inner = self.lines.append, indent + "    "
        if kind < 3:
            add(f"{indent}{self.dice.choice(NAMES)} = {self.number(2)}")
        elif kind == 3:
            add(f"{indent}a[{self.index()}] = {self.number(2)}")
        elif kind == 4:
            name, value = self.dice.choice(NAMES), self.number(1)
            symbol = self.dice.choice("+-*&|^")
            if self.is_reference:
                add(f"{indent}{name} = wrap({name} {symbol} ({value}))")
            else:
                add(f"{indent}{name} {symbol}= {value}")
        elif kind == 5:
            add(f"{indent}y, z = {self.number(1)}, {self.number(1)}")
        elif kind < 9:
            add(f"{indent}if {self.truth(2)}:")
            self.body(inner, self.dice.randint(1, 2), depth + 1)
            if self.dice.random() < 0.5:
                add(f"{indent}else:")
                self.body(inner, self.dice.randint(1, 2), depth + 1)
        elif kind == 9:
            add(f"{indent}for {self.dice.choice(NAMES)} in {self.range()}:")
            self.looped(inner, depth)
        elif kind == 10:
            test = "True" if self.dice.random() < 0.3 else self.truth(1)
            add(f"{indent}while {test}:")
            self.looped(inner, depth)
        else:
            add(f"{indent}return {self.number(1)}")

    def looped(self, indent: str, depth: int) -> None:
        self.lines.append(f"{indent}fuel -= 1")
        self.lines.append(f"{indent}if fuel < 0:")
        self.lines.append(f"{indent}    {self.dice.choice(['break', 'return 3'])}")
        self.body(indent, self.dice.randint(1, 3), depth + 1)
        if self.dice.random() < 0.3:
            self.lines.append(f"{indent}if {self.truth(1)}:")
            self.lines.append(f"{indent}    {self.dice.choice(['break', 'continue'])}")

    def range(self) -> str:
        bounds = [self.number(1) for _ in range(self.dice.randint(1, 2))]
        if len(bounds) == 2 and self.dice.random() < 0.6:
            bounds.append(str(self.dice.choice((1, 2, 3, 1000, 2**62))))
        return f"range({', '.join(bounds)})"

    def index(self) -> str:
        any_index = "at(y)" if self.is_reference else "y"
        below_4 = ["0", "1", "3", "k & 3", "m & 3", "x & 3", "len(a) - 1"]
        return self.dice.choice([*below_4, any_index])

    def number(self, depth: int, *, calls: bool = True) -> str:
        if depth == 0:
            leaves = [*NAMES, "m", "SEVEN", "LARGE", "len(a)", "3", "63", "-1", "fuel"]
            leaves += ["a[k & 3]", "a[x & 3]"]
            leaf = self.dice.choice(leaves)
            return leaf if calls or leaf != "fuel" else "5"
        kind = self.dice.randrange(12)
        left, right = (self.number(depth - 1, calls=calls) for _ in range(2))
        if kind < 5:
            text = f"({left} {self.dice.choice('+-*&|^')} {right})"
        elif kind == 5:
            by = self.dice.choice([f"({right} & 63)", "7", right])
            symbol = self.dice.choice(("<<", ">>"))
            if self.is_reference:
                return f"wrap({left} {symbol} min({by}, 200))"
            return f"({left} {symbol} {by})"
        elif kind == 6:
            text = f"{self.dice.choice(('min', 'max'))}({left}, {right})"
        elif kind == 7:
            text = f"(-({left}))" if self.dice.random() < 0.5 else f"(~({left}))"
        elif kind == 8:
            text = f"({left} if {self.truth(depth - 1)} else {right})"
        elif kind == 9 and calls:
            text = f"helper(a, {left}, {right})"
        elif kind == 10:
            word = self.dice.choice(("// np.uint64(3)", "% np.uint64(10)", ">> np.uint64(5)"))
            if self.is_reference:
                plain = word.replace("np.uint64(", "").replace(")", "")
                return f"wrap((({left}) % 2**64) {plain})"
            text = f"np.int64(np.uint64({left}) {word})"
        else:
            text = left
        return f"wrap({text})" if self.is_reference else text

    def truth(self, depth: int) -> str:
        kind = self.dice.randrange(8)
        left, right = self.number(depth), self.number(depth)
        symbol = self.dice.choice(("<", "<=", ">", ">=", "==", "!="))
        if kind < 4 or depth == 0:
            return f"{left} {symbol} {right}"
        if kind == 4:
            return f"{left} {symbol} {right} {self.dice.choice(('<', '<='))} {self.number(0)}"
        if kind == 5:
            join = self.dice.choice(("and", "or"))
            return f"({self.truth(depth - 1)} {join} {self.truth(depth - 1)})"
        if kind == 6:
            return f"not ({self.truth(depth - 1)})"
        return f"{left} in ({right}, 3, SEVEN)"
