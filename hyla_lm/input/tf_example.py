"""Reads a bytes feature of a serialized tf.train.Example without TensorFlow.

Example { Features features = 1 }, Features { map<string, Feature> feature = 1 },
Feature { BytesList bytes_list = 1 }, BytesList { repeated bytes value = 1 }.
"""

from collections.abc import Iterator

LENGTH_DELIMITED = 2


def bytes_feature(example: bytes, name: str) -> bytes:
    """The first value of a feature; raises ValueError if the example does not have it."""
    wanted, there = name.encode(), []
    for features in _fields(example, 1):
        for entry in _fields(features, 1):
            key = next(_fields(entry, 1), b"")
            if key == wanted:
                return _first_value(entry, name)
            there.append(repr(key.decode(errors="replace")))
    raise ValueError(f"no feature {name!r} but {', '.join(sorted(there)) or 'none':.200}")


def _first_value(entry: bytes, name: str) -> bytes:
    for feature in _fields(entry, 2):
        for bytes_list in _fields(feature, 1):
            for value in _fields(bytes_list, 1):
                return value
    raise ValueError(f"feature {name!r} holds no bytes")


def _fields(message: bytes, number: int) -> Iterator[bytes]:
    """The fields with this number; all fields here are length-delimited."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        size, place = _varint(message, place)
        if tag & 7 != LENGTH_DELIMITED or place + size > len(message):
            raise ValueError("no serialized tf.train.Example")
        if tag >> 3 == number:
            yield message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(message):
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
    raise ValueError("no serialized tf.train.Example")
