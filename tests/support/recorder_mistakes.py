"""The mistakes that recorders and other tools make in traces, put into sound ones at random."""

from __future__ import annotations

import random
import re

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_VALUE = re.compile(
    rb'(?<=[:\[,])([ \n]*)(-?[0-9][0-9.]*|"(?:[^"\\]|\\.)*"|\{\}|\[\])(?=[ \n]*[,}\]])'
)
_GAP = re.compile(rb'(?<=[{,])[ \n]*(?=")|[ \n]*(?=\})')

IN_STRINGS = [
    b"\xff", b"\x80\x80", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\xaf",
    b"\xf4\x90\x80\x80", b"\xc3\xa9", b"\xf0\x9f\x98\x80", b"\xe4\xb8\xad\xff", b"\x01", b"\t",
    b"\n", b"\r\n", b"\x1f", b"\x0b", b"\x7f", b"\x00", b"\xc2\xa0", b'"', b'"hi"', b'("a", "b")',
    b'", ', b'"}', b'":', b'"]', b'" "', b'",1', b"\\", b"\\U", b"C:\\Users\\new", b"\\u12",
    b"\\ud800", b"\\ud83d\\ude00", b"\\udc80x", b"\\uD83D\\u0041", b"\\ud83d\\ud83d\\ude00",
    b"\\\\ud800", b'\\"', b"\\\\", b"\\/", b"\\u00e9", b"0x1f", b"x" * 40, b"\\" * 3, b'"' * 101,
    b'\xff","', b'\\",',
]  # fmt: skip
VALUES = [
    b"NaN", b"nan", b"-nan", b"Infinity", b"-Infinity", b"inf", b"-inf", b"N/A", b"1.#IND", b"01",
    b"+5", b".5", b"5.", b"-", b"", b"0x1F", b"true", b"truex", b"null", b'"12.5"', b'"1e3"',
    b'"7"', b'"-0"', b"1e3", b'"0x7f"', b'"007"', b"1.50", b"-0", b"18446744073709551616",
    b"9" * 310, b"[" * 61 + b"]" * 61, b"{}", b"[1,,2,]", b'{"a":,}', b"nan(ind)", b"w" * 65,
    b"a\\b", b"a\xffb", b"\xff", b'"\xff"', b"{,}", b"[,]", b"1 2", b"{1:2}",
]  # fmt: skip
IN_GAPS = [
    b",", b",,", b'"tts": 5,', b'"tts": {"a": ["\xff"]},', b'"cname": "\xff",', b'"sf": "good",',
    b'"args": null,', b'"n\\u0061me": "other",', b'"ph": null,', b'"ph": "X",', b'"x\xff": 1,',
    b'"s": "g\xff",', b'"id": "12",', b'"args": {"device": "\x01"},', b'"q"uote": 2,',
    b'"tts": N/A,', b'"dur": "3",', b" \x0b", b"\xc2\xa0", b'"p\\u0068": null,', b'"a\\qb": 1,',
    b'"": 1,',
]  # fmt: skip
KINDS = [(_STRING, IN_STRINGS), (_VALUE, VALUES), (_GAP, IN_GAPS)]


def with_mistakes(text: bytes, chance: random.Random) -> bytes:
    """Makes the same few mistakes again and again, as a recorder does, in some events or in all.

    Args:
        text: A trace.
        chance: Decides what is done, and where.
    """
    for _ in range(chance.choice((1, 1, 2, 3))):
        places, mistakes = chance.choice(KINDS)
        some = chance.sample(mistakes, chance.choice((1, 1, 2)))
        share = chance.choice((0.002, 0.02, 0.3, 1.0))

        def mistaken(
            found: re.Match[bytes],
            some: list[bytes] = some,
            share: float = share,
            places: re.Pattern[bytes] = places,
        ) -> bytes:
            if chance.random() >= share:
                return found[0]
            mistake = chance.choice(some)
            if places is _STRING:
                at = chance.randrange(1, len(found[0]))
                return found[0][:at] + mistake + found[0][at:]
            if places is _VALUE:
                return found[1] + mistake
            return found[0] + mistake

        start = text.find(b"traceEvents") + 13 if chance.random() < 0.9 else 0
        text = text[:start] + places.sub(mistaken, text[start:])
    return text
