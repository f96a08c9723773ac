"""Reading a shell script without running it: words, variables, arrays, as far as they are literal.

Nothing is executed and no file is opened. Assignments are followed in order; of a branch the side is read
that literal values decide, or the first where they do not. What only a running shell could know (``$1``,
``$(date)``, an unset variable) is kept by name, so that a reader can say which value is missing.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from meshplan.errors import InputError
from meshplan.export.shell_follow import MOST_DEEP, MOST_FOLLOWED, Sibling, slurm_variables, started
from meshplan.export.shell_tokens import ASSIGN, NAME, Piece, Tokens, unliteral
from meshplan.export.shell_values import Word, calculate, test, unknown

MOST_WORDS = 200_000
_PARAMETER = re.compile(rf"({NAME}|[0-9@*#?$!-])(\[[@*]\])?((:?[-=+?])(.*))?", re.DOTALL)
_KEYWORDS = {
    "if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "!", "{", "}",
    "time", "exec",
}  # fmt: skip
_SETTERS = {"export", "declare", "local", "readonly", "typeset"}


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
    followed: dict[str, str] = field(default_factory=dict)
    """Scripts beside it that it starts or sources, and were read with it: name → text."""


def read_shell(text: str, sibling: Sibling = lambda name: None) -> Script:
    """The script in ``text``, with those it starts that ``sibling`` finds. Raises ``InputError`` for a quote
    that is never closed."""
    reader = _Reader(text, sibling)
    script = reader.script
    for command in reader.commands():
        if command:
            script.commands.append(command)
    return script


@dataclass(slots=True)
class _Branch:
    """An if or a case that is open: whether its present side is skipped and whether one was taken."""

    kind: str
    subject: str | None = None
    pattern: bool = False
    """The next words are a pattern of a case."""
    skip: bool = False
    taken: bool = False
    argument: bool = False
    """The subject is an argument of the script: with none given, no arm runs."""
    arm: bool = False
    """Whether one of the patterns of this arm matched."""
    alternatives: bool = False
    """The last pattern was followed by another one of the same arm."""


class _Reader(Tokens):
    def __init__(
        self, text: str, sibling: Sibling = lambda name: None, deep: int = 0, left: list[int] | None = None
    ) -> None:
        super().__init__(text)
        self.sibling, self.deep = sibling, deep
        self.left = [MOST_FOLLOWED] if left is None else left
        """How many scripts may still be followed, shared by all readers of a file."""
        self.stack: list[_Branch] = []
        self.script = Script()
        self.words = 0

    def commands(self) -> Iterator[list[Word]]:
        """Commands with their words expanded; assignments are carried out on the way."""
        command: list[list[Piece]] = []
        pending_heredocs: list[str] = []
        while True:
            token = self.next()
            if token is None:
                yield from self._run(self._finish(command))
                return
            if isinstance(token, str):
                if token.startswith("<<"):
                    pending_heredocs.append(token[2:])
                    continue
                yield from self._run(self._finish(command, token))
                command = []
                if token == "\n" and pending_heredocs:
                    for end in pending_heredocs:
                        yield from self._heredoc(end)
                    pending_heredocs = []
                continue
            self.words += 1
            if self.words > MOST_WORDS:
                raise InputError(f"the script has more than {MOST_WORDS:,} words; this is no launch script")
            command.append(token)

    def directive(self, text: str) -> None:
        self.script.directives.append(text)
        for name, value in slurm_variables(text).items():
            self.script.variables.setdefault(name, [Word(value)])
            self.script.exported.add(name)

    def _run(self, words: list[Word]) -> Iterator[list[Word]]:
        """A command, and after it those of the script that it starts, if that is at hand."""
        yield words
        script = self.script
        found = started(words, self.sibling) if self.deep < MOST_DEEP else None
        if found is None or self.left[0] <= 0:
            return
        self.left[0] -= 1
        sourced, name, text = found
        if name:
            script.followed[name] = text
        inner = _Reader(text, self.sibling, self.deep + 1, self.left)
        if not sourced:
            known = {name: value for name, value in script.variables.items() if name in script.exported}
            inner.script = replace(script, variables=known, commands=[])
        else:
            inner.script = script
        try:
            yield from list(inner.commands())
        except InputError:
            return
        script.variables.update(inner.script.variables)
        script.branches |= inner.script.branches

    def _heredoc(self, end: str) -> Iterator[list[Word]]:
        """Commands of a here-document (a batch script handed to sbatch), if it reads as a script."""
        found = re.compile(rf"^\t*{re.escape(end)}[ \t]*$", re.MULTILINE).search(self.text, self.at)
        body = self.text[self.at : len(self.text) if found is None else found.start()]
        self.at = len(self.text) if found is None else found.end()
        if "--" in body and not any(branch.skip for branch in self.stack):
            inner = _Reader(body, self.sibling, self.deep, self.left)
            inner.script = self.script
            try:
                yield from list(inner.commands())
            except InputError:
                return

    def _finish(self, command: list[list[Piece]], separator: str = "") -> list[Word]:
        """Carry out assignments; the expanded words of what else there is."""
        here, self.here = self.here, None
        while command and (keyword := _plain(command[0])) in _KEYWORDS:
            command = self._branch(keyword, command[1:])
        if self.stack and self.stack[-1].kind == "case" and self.stack[-1].pattern:
            command = self._pattern(command, more=separator == "|")
        if separator == ";;" and self.stack:
            self.stack[-1].pattern = True
        if any(branch.skip for branch in self.stack):
            return []
        if command and _plain(command[0]) == "unset":
            for pieces in command[1:]:
                self.script.variables.pop(_plain(pieces), None)
            return []
        setter = bool(command) and _plain(command[0]) in _SETTERS
        rest = command[1:] if setter else command
        exports = setter and _plain(command[0]) in ("export", "declare", "typeset")
        if exports:
            self.script.exported |= {_plain(pieces) for pieces in rest}
        while rest and (name := ASSIGN.match(rest[0][0][0] if rest[0] else "")):
            self._assign(rest[0], name)
            rest = rest[1:]
            if exports or len(rest):
                self.script.exported.add(name[1])
            while setter and rest and not ASSIGN.match(rest[0][0][0]):
                rest = rest[1:]
        if rest and _plain(rest[0]) == "read":
            self._read(rest[1:], here)
            return []
        return [] if setter else [word for pieces in rest for word in self.expand(pieces)]

    def _branch(self, keyword: str, rest: list[list[Piece]]) -> list[list[Piece]]:
        """Follow an if, case or loop; what is left of the command."""
        match keyword:
            case "if":
                self.stack.append(_Branch("if"))
                return self._condition(rest)
            case "elif" | "else" if self.stack:
                top = self.stack[-1]
                top.skip = top.taken
                return (
                    self._condition(rest)
                    if keyword == "elif" and not top.skip
                    else ([] if keyword == "elif" else rest)
                )
            case "case":
                subject = self.expand(rest[0], split=False)[0] if rest else Word("")
                argument = any(re.match(r"\$[0-9@*#]", name) for name in subject.missing)
                known = None if subject.missing else subject.text
                self.stack.append(_Branch("case", subject=known, pattern=True, argument=argument))
                return rest[2:]
            case "fi" | "esac" if self.stack:
                self.stack.pop()
                return rest
            case "for" | "while" | "until":
                self.script.branches = True
                if keyword == "for" and len(rest) > 2 and not any(branch.skip for branch in self.stack):
                    words = [word for pieces in rest[2:] for word in self.expand(pieces)]
                    name = _plain(rest[0])
                    self.script.variables[name] = words[:1] or [unknown("$" + name)]
                return []
        return rest

    def _condition(self, rest: list[list[Piece]]) -> list[list[Piece]]:
        """Decide a test that is literal; what cannot be decided counts as true."""
        top = self.stack[-1]
        if any(branch.skip for branch in self.stack[:-1]):
            top.skip = True
            return []
        verdict = test([word for pieces in rest for word in self.expand(pieces)])
        if verdict is None:
            self.script.branches = True
        top.skip = verdict is False
        top.taken |= not top.skip
        return []

    def _read(self, words: list[list[Piece]], here: list[Piece] | None) -> None:
        """The variables of ``read``, from a here-string where there is one."""
        names = [name for pieces in words if re.fullmatch(NAME, name := _plain(pieces))]
        breaks = self.script.variables.pop("IFS", [Word("")])[0].text or r"\s"
        text = self.expand(here, split=False)[0].raw.strip() if here else ""
        parts = re.split(f"[{breaks}]" if breaks == r"\s" else f"[{re.escape(breaks)}]", text) if text else []
        for i, name in enumerate(names):
            self.script.variables[name] = [Word(parts[i]) if i < len(parts) else unknown("$" + name)]

    def _pattern(self, command: list[list[Piece]], *, more: bool) -> list[list[Piece]]:
        """One arm of a case: run it if its pattern is the subject, or the first where that is not known."""
        if not command:
            return command
        top = self.stack[-1]
        pattern = "".join(text for text, _ in command[0])
        if top.subject is None:
            self.script.branches = True
            hit = not top.taken and not top.argument
        else:
            hit = not top.taken and fnmatch.fnmatchcase(top.subject, unliteral(pattern))
        top.arm = hit or (top.arm and top.alternatives)
        top.alternatives = top.pattern = more
        top.skip = not top.arm
        top.taken |= hit
        return command[1:]

    def _assign(self, pieces: list[Piece], found: re.Match[str]) -> None:
        name, append = found[1], found[2] == "+"
        old = self.script.variables.get(name, [])
        if len(pieces) > 1 and pieces[1][0].startswith("(") and not pieces[1][1]:
            inner = _Reader(pieces[1][0][1:-1].replace("\n", " \n"))
            inner.script = Script(variables=self.script.variables)
            words = [word for command in inner.commands() for word in command]
            self.script.variables[name] = [*old, *words] if append else words
            return
        head = (pieces[0][0][found.end() :], pieces[0][1])
        value = Word(" ".join(w.raw for w in self.expand([head, *pieces[1:]], split=False)))
        if append and old:
            value = Word(old[0].raw + value.raw)
        self.script.variables[name] = [value]

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
            return [self._arithmetic(whole)]
        if whole.startswith("$("):
            return [unknown(whole)]
        inner = whole[2:-1] if whole.startswith("${") else whole[1:]
        found = _PARAMETER.fullmatch(inner)
        if found is None:
            return [unknown(whole)]
        name, _, operator, fallback = found[1], found[2], found[4], found[5]
        known = self.script.variables.get(name)
        if known is not None and (operator != ":+" or not known):
            if operator in (":-", ":=") and len(known) == 1 and not known[0].raw:
                known = None
            else:
                return known if found[2] or len(known) == 1 else known[:1]
        if operator in (":-", "-", ":=", "="):
            if len(fallback) > 1 and fallback[0] == fallback[-1] and fallback[0] in "'\"":
                fallback = fallback[1:-1]
            default = self.expand([(fallback, True)], split=False)
            if operator in (":=", "="):
                self.script.variables[name] = default
            return default
        if operator in (":+", "+"):
            return []
        return [unknown(f"${name}")]

    def _arithmetic(self, whole: str) -> Word:
        inner = whole[3:-2]
        names = re.sub(rf"\$?\{{?({NAME})\}}?", self._number, inner)
        if re.fullmatch(r"[0-9+\-*/% ()\s]{1,200}", names):
            value = calculate(names)
            if value is not None:
                return Word(str(value))
        return unknown(whole)

    def _number(self, found: re.Match[str]) -> str:
        known = self.script.variables.get(found[1])
        ok = known and len(known) == 1 and not known[0].missing and known[0].text.isdecimal()
        return known[0].text if known and ok else "?"


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


def _plain(pieces: list[Piece]) -> str:
    return "".join(text for text, quoted in pieces if not quoted) if len(pieces) <= 2 else ""
