"""One request: its address, its language, its form, read when they are needed."""

from __future__ import annotations

from functools import cached_property
from urllib.parse import parse_qsl

from starlette.requests import Request

from meshplan.errors import InputError
from meshplan.report.words import LANGUAGES, Words, words_in
from meshplan.web.question import START, Address

MOST_FIELDS = 200
OWN = ("to", "launcher", "job")
"""Keys of single pages, which are no part of a question."""


class Visit:
    """A request as views see it."""

    def __init__(self, request: Request) -> None:
        self.request = request

    @property
    def path(self) -> str:
        """The path that was asked for."""
        return str(self.request.url.path)

    @cached_property
    def pairs(self) -> list[tuple[str, str]]:
        """The query's keys and values. Raises ``InputError``."""
        return read_pairs(self.request.url.query)

    @cached_property
    def address(self) -> Address:
        """The address; without a question in it, the one that the page opens with. Raises ``InputError``."""
        address = Address.of((key, value) for key, value in self.pairs if key not in OWN)
        if set(address.values) <= {"lang"}:
            return Address({**START, **address.values})
        return address

    def address_or(self, other: Address) -> Address:
        """The address, or ``other`` where it cannot be read."""
        try:
            return self.address
        except InputError:
            return Address(
                {**other.values, **({"lang": self.words.language} if self.words.language != "en" else {})}
            )

    def own(self, key: str, default: str = "") -> str:
        """A value of ``OWN``."""
        return dict(self.pairs).get(key, default)

    @cached_property
    def words(self) -> Words:
        """The texts in the language that the address names, or else the browser prefers."""
        try:
            asked = dict(self.pairs).get("lang", "")
        except InputError:
            asked = ""
        preferred = self.request.headers.get("accept-language", "").strip().lower()
        return words_in(asked if asked in LANGUAGES else "zh" if preferred.startswith("zh") else "en")

    @property
    def is_part(self) -> bool:
        """Whether the script asks for a part to put into the page."""
        return "x-part" in self.request.headers

    async def form(self) -> dict[str, str]:
        """The fields of a posted form. Raises ``InputError``."""
        body = await self.request.body()
        return dict(read_pairs(body.decode("utf-8", "replace")))


def read_pairs(query: str) -> list[tuple[str, str]]:
    """Keys and values of a query or a form. Raises ``InputError`` for too many."""
    try:
        return parse_qsl(query, keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise InputError(f"a request may have at most {MOST_FIELDS} fields") from None
