"""The pickles of CIFAR's python version, read as data.

A pickle is a program: to load one freely is to run what its author wrote. Here the opcodes are read one by one, and
only those of the published files are known. They make dictionaries, lists, tuples, text and whole numbers, and arrays
of bytes: what a file names of numpy stands for such an array, and nothing is called or created by a name in the file.
"""

import itertools
import pickletools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

_OPCODES = 1_000_000  # the largest published file has a quarter of it

_PUSHED = frozenset({"BININT", "BININT1", "BININT2", "SHORT_BINSTRING", "NONE"})
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_IGNORED = frozenset({"PROTO", "STOP"})
_ARRAY, _DTYPE = "numpy.core.multiarray _reconstruct", "numpy dtype"
_GLOBALS = frozenset({_ARRAY, _DTYPE, "numpy ndarray"})


class _Bytes:
    """An array of bytes: empty, until a pickle says what is in it."""

    array: np.ndarray = np.empty(0, np.uint8)


class _ByteType:
    """numpy's uint8."""


def read_pickle(content: bytes, name: Path) -> dict[str, Any]:
    """The dictionary of numbers, text, lists and arrays of bytes in a file of CIFAR.

    Args:
        content: of the file.
        name: of the file, for the message.

    Raises:
        ValueError: it is not laid out as the published files are.
    """
    try:
        read = _read(content)
    except Exception as error:  # there are many ways not to be such a file
        raise ValueError(
            f"{str(name)!r} is not laid out as CIFAR's own files are ({error}): it may be cut off or changed, so "
            "download it again"
        ) from error
    return {key: value.array if isinstance(value, _Bytes) else value for key, value in read.items()}


def _read(content: bytes) -> dict[str, Any]:
    stack, marks, memo = list[Any](), list[int](), dict[int, Any]()

    def since_mark() -> list[Any]:
        first = marks.pop()
        items = stack[first:]
        del stack[first:]
        return items

    steps: Iterator[tuple[Any, Any, Any]] = itertools.islice(pickletools.genops(content), _OPCODES)
    for opcode, argument, place in steps:
        name: str = opcode.name
        if name in _PUSHED or (name == "GLOBAL" and argument in _GLOBALS):
            stack.append(argument)
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "BINSTRING":
            stack.append(memoryview(content)[place + 5 : place + 5 + len(argument)])
        elif name in ("NEWFALSE", "NEWTRUE"):
            stack.append(name == "NEWTRUE")
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "MARK":
            marks.append(len(stack))
        elif name == "TUPLE":
            stack.append(tuple(since_mark()))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            stack.append(tuple(reversed([stack.pop() for _ in range(int(name[-1]))])))
        elif name in ("APPEND", "APPENDS"):
            items = [stack.pop()] if name == "APPEND" else since_mark()
            _expect(stack[-1], list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = [stack.pop(-2), stack.pop()] if name == "SETITEM" else since_mark()
            keys = [_expect(key, str) for key in items[::2]]
            _expect(stack[-1], dict).update(zip(keys, items[1::2], strict=True))
        elif name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            stack.append(_made(function, _expect(arguments, tuple)))
        elif name == "BUILD":
            _fill_(stack[-2], _expect(stack.pop(), tuple))
        elif name not in _IGNORED:
            raise ValueError(f"they have no {name} {argument or ''!s:.60}")
    if name != "STOP":
        raise ValueError("it is too long")
    return _expect(stack.pop(), dict)


def _made(function: Any, arguments: tuple[Any, ...]) -> _Bytes | _ByteType:
    if function == _ARRAY:
        return _Bytes()
    if function == _DTYPE and arguments[0] == "u1":
        return _ByteType()
    raise ValueError("they make nothing but arrays of bytes")


def _fill_(target: Any, state: tuple[Any, ...]) -> None:
    if isinstance(target, _ByteType):  # byte order and alignment: a byte has none
        return
    _, shape, dtype, columns_first, raw = state
    _expect(dtype, _ByteType)
    rows, columns = (_expect(side, int) for side in _expect(shape, tuple))
    flat = np.frombuffer(_expect(raw, memoryview), np.uint8)
    _expect(target, _Bytes).array = flat.reshape(rows, columns, order="F" if columns_first else "C")


def _expect(value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"a {type(value).__name__} where they have a {kind.__name__.strip('_')}")
    return value
