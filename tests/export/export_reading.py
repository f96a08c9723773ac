"""What tests of reading share: a text read to its end, and the one sentence that refuses it."""

from __future__ import annotations

import pytest

from meshplan.errors import InputError
from meshplan.export.found import Found
from meshplan.export.reading import Given, Reading, resolve
from meshplan.export.recognise import recognise

LLAMA_8B = """\
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \\
  --group-query-attention --num-query-groups 8 --swiglu --disable-bias-linear --normalization RMSNorm \\
  --untie-embeddings-and-output-weights --position-embedding-type rope --vocab-size 128256 \\
"""


def read(text: str, given: Given | None = None, beside: dict[str, str] | None = None) -> Reading:
    files = beside or {}
    found = recognise(text, where="it", sibling=lambda name: files.get(name.rpartition("/")[2]))
    assert isinstance(found, Found)
    return resolve(found, given or Given())


def complaint(text: str, given: Given | None = None) -> str:
    with pytest.raises(InputError) as caught:
        read(text, given)
    said = str(caught.value)
    assert "\n" not in said
    return said
