"""A dropped file as part of an address, deflated and in base64: the address holds the question whole."""

from __future__ import annotations

import base64
import binascii
import zlib

from meshplan.errors import InputError

MOST_BYTES = 64 << 10
"""Of a dropped file; configurations of models have one to ten thousand."""
MOST_CHARACTERS = 12_000
"""Of the packed text: addresses beyond are not carried by every program."""


def pack(text: str, what: str) -> str:
    """``text`` as letters that need no quoting in an address. Raises ``InputError`` where it is too long."""
    data = text.encode()
    if len(data) > MOST_BYTES:
        raise InputError(f"{what} has {len(data):,} bytes; {MOST_BYTES:,} is the most")
    packed = base64.urlsafe_b64encode(zlib.compress(data, 9)).decode().rstrip("=")
    if len(packed) > MOST_CHARACTERS:
        raise InputError(f"{what} is too long for an address, {len(packed):,} letters when packed")
    return packed


def unpack(packed: str, what: str) -> str:
    """The text again. Raises ``InputError`` for what ``pack`` did not make, or would not have."""
    if len(packed) > MOST_CHARACTERS:
        raise InputError(f"{what} is too long for an address, {len(packed):,} letters")
    try:
        data = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True)
        engine = zlib.decompressobj()
        text = engine.decompress(data, MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise InputError(f"{what} has more than {MOST_BYTES:,} bytes")
        if not engine.eof or engine.unused_data:
            raise InputError(f"{what} in this address is cut short or has more behind it")
        return text.decode()
    except (binascii.Error, zlib.error, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"{what} in this address cannot be read: {type(error).__name__.lower()}") from None
