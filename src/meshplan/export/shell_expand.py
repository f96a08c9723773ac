"""Expansion of shell words: variables, arrays, arithmetic, and what ``echo`` would say; nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from meshplan.export.shell_arithmetic import arithmetic
from meshplan.export.shell_tokens import NAME, Piece, Tokens, unliteral
from meshplan.export.shell_values import Word, unknown

MOST_SUM = 400
"""Characters of arithmetic inside a word."""
MOST_TURNS = 20_000
"""Turns that all loops of a script are followed for."""
_PARAMETER = re.compile(rf"({NAME}|[0-9]+|[@*#?$!-])(\[[@*]\])?((:?[-=+?])(.*))?", re.DOTALL)


@dataclass(kw_only=True, slots=True)
class Script:
    """What a script says: its commands in order, the variables at its end, and what it exports."""

    commands: list[list[Word]] = field(default_factory=list)
    variables: dict[str, list[Word]] = field(default_factory=dict)
    directives: list[str] = field(default_factory=list)
    """The text of ``#SBATCH`` lines."""
    branches: bool = False
    """Whether there is a condition that only a running shell could decide."""
    exported: set[str] = field(default_factory=set)
    unset: set[str] = field(default_factory=set)
    """Variables that only a side of the script sets that is known not to run."""
    followed: dict[str, str] = field(default_factory=dict)
    """Scripts beside it that it starts or sources, and were read with it: name → text."""


class Expander(Tokens):
    """The words that pieces become, with the variables of ``script``."""

    script: Script

    def inner(self, text: str) -> list[list[Word]]:
        """The commands of a script inside this one, which knows its variables and changes none."""
        raise NotImplementedError

    def expand(self, pieces: list[Piece], *, split: bool = True) -> list[Word]:
        """The words that a word with its expansions becomes."""
        words: list[Word] = []
        text, something = "", False
        for raw, quoted in pieces:
            something |= quoted
            for values, expanded in self._expansions(raw):
                breaks = split and expanded and not quoted
                fields = [part for value in values for part in (value.raw.split() if breaks else [value.raw])]
                for i, one in enumerate(fields):
                    if i:
                        words.append(Word(unliteral(text)))
                        text = ""
                    text += one
                    something |= bool(one)
        if something or text or not split:
            words.append(Word(unliteral(text)))
        return words

    def _expansions(self, raw: str) -> Iterator[tuple[list[Word], bool]]:
        at = 0
        for found in re.finditer(rf"\$(?:\(\(|\(|\{{|{NAME}|[0-9@*#?$!-])", raw):
            if found.start() < at:
                continue
            if found.start() > at:
                yield [Word(raw[at : found.start()])], False
            whole, at = _balanced(raw, found.start())
            yield self._value(whole), True
        if at < len(raw):
            yield [Word(raw[at:])], False

    def _value(self, whole: str) -> list[Word]:
        if whole.startswith("$(("):
            value = arithmetic(whole[3:-2], self._number) if len(whole) <= MOST_SUM else None
            return [unknown(whole) if value is None else Word(str(value))]
        if whole.startswith("$("):
            return [self._said_by(whole)]
        inner = whole[2:-1] if whole.startswith("${") else whole[1:]
        found = _PARAMETER.fullmatch(inner)
        if found is None:
            return [unknown(whole)]
        name, _, operator, fallback = found[1], found[2], found[4], found[5]
        known = self.script.variables.get(name)
        if known is not None and (operator != ":+" or not known):
            if operator in (":-", ":=") and len(known) == 1 and not known[0].raw:
                known = None
            elif found[2] == "[*]":
                return [Word((self._separator() or " ").join(word.raw for word in known))]
            else:
                return known if found[2] or len(known) == 1 or name == "@" else known[:1]
        if operator in (":-", "-", ":=", "="):
            if len(fallback) > 1 and fallback[0] == fallback[-1] and fallback[0] in "'\"":
                fallback = fallback[1:-1]
            default = self.expand([(fallback, True)], split=False)
            if operator in (":=", "="):
                self.script.variables[name] = default
            return default
        if operator in (":+", "+"):
            return []
        return [] if name in self.script.unset else [unknown(f"${name}")]

    def arithmetic(self, text: str) -> int | None:
        """What arithmetic comes to; what it assigns is."""
        inner = unliteral(text).strip()
        inner = inner[2:-2] if inner.startswith("((") and inner.endswith("))") else inner

        def assign(name: str, value: int) -> None:
            self.script.variables[name] = [Word(str(value))]

        return arithmetic(inner, self._number, assign)

    def _said_by(self, whole: str) -> Word:
        """What ``$(echo …)`` says, perhaps after an ``IFS=``, and ``$(seq …)``; all other commands are not
        known."""
        commands = self.inner(whole[2:-1])
        if len(commands) != 1 or any(word.missing for word in commands[0]):
            return unknown(whole)
        head, *words = commands[0]
        texts = [word.text for word in words]
        if head.text == "echo":
            return Word(" ".join(word for word in texts if word not in ("-n", "-e")))
        if head.text == "printf":
            return printed(words)
        if head.text == "seq" and texts and len(texts) < 3 and all(text.isdecimal() for text in texts):
            first, last = (1, *map(int, texts))[-2:]
            if last - first < MOST_TURNS:
                return Word(" ".join(map(str, range(first, last + 1))))
        return unknown(whole)

    def _separator(self) -> str:
        """What joins the elements of ``${list[*]}``: the first character of IFS."""
        known = self.script.variables.get("IFS")
        return known[0].text[:1] if known else " "

    def _number(self, name: str) -> int | None:
        known = self.script.variables.get(name)
        if not known or len(known) != 1 or known[0].missing:
            return None
        text = known[0].text
        return int(text) if re.fullmatch(r"-?[0-9]{1,15}", text) else None


def printed(words: Sequence[Word]) -> Word:
    """What ``printf`` makes of a format with ``%s`` and ``%d`` and its values, one of each."""
    form, values = (words[0].raw, list(words[1:])) if words else ("", [])
    if len(re.findall(r"%[sd]", form)) != len(values) or form.count("%") != len(values):
        return unknown(f"printf {form}")
    parts = re.split(r"%[sd]", form)
    return Word("".join(part + (values[i].raw if i < len(values) else "") for i, part in enumerate(parts)))


def _balanced(raw: str, start: int) -> tuple[str, int]:
    """The expansion that starts here, and where it ends."""
    if raw[start + 1] not in "({":
        found = re.compile(rf"\$({NAME}|[0-9@*#?$!-])").match(raw, start)
        end = found.end() if found else start + 1
        return raw[start:end], end
    depth = 0
    for at in range(start + 1, len(raw)):
        if raw[at] in "({":
            depth += 1
        elif raw[at] in ")}":
            depth -= 1
            if depth == 0:
                return raw[start : at + 1], at + 1
    return raw[start:], len(raw)
