"""Reading a shell script without running it: words, variables, arrays, as far as they are literal.

Nothing is executed and no file is opened. Assignments are followed in order; of a branch the side is read
that literal values decide, or the first where they do not. What only a running shell could know (``$1``,
``$(date)``, an unset variable) is kept by name, so that a reader can say which value is missing.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from meshplan.errors import InputError
from meshplan.export.shell_expand import MOST_TURNS, Expander, Script, printed
from meshplan.export.shell_follow import MOST_DEEP, MOST_FOLLOWED, Sibling, slurm_variables, started
from meshplan.export.shell_tokens import ASSIGN, NAME, Piece, unliteral
from meshplan.export.shell_values import Word, test, unknown

MOST_WORDS = 200_000
_KEYWORDS = {
    "if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "!", "{", "}",
    "time", "exec",
}  # fmt: skip
_SETTERS = {"export", "declare", "local", "readonly", "typeset"}


def read_shell(
    text: str, sibling: Sibling = lambda name: None, arguments: Sequence[str] | None = None
) -> Script:
    """The script in ``text``, with those it starts that ``sibling`` finds. ``arguments``: what it is started
    with (default: not known). Raises ``InputError`` for a quote that is never closed."""
    reader = _Reader(text, sibling)
    script = reader.script
    if arguments is not None:
        reader.arguments([Word(argument) for argument in arguments])
    for command in reader.commands():
        if command:
            script.commands.append(command)
    return script


@dataclass(slots=True)
class _Loop:
    """A loop that is open: where its next turn starts, and what must be true for it; ``None``: one turn."""

    at: int = 0
    step: str | None = None
    """Of ``for ((…; …; step))``, to be done before the condition is asked."""
    condition: str | None = None
    again: bool = False
    """A ``while`` whose condition was true: it is read again."""
    words: list[Word] = field(default_factory=list)
    """What a ``for … in`` still goes through."""
    name: str = ""


@dataclass(slots=True)
class _Branch:
    """An if or a case that is open: whether its present side is skipped and whether one was taken."""

    kind: str
    subject: str | None = None
    pattern: bool = False
    """The next words are a pattern of a case."""
    skip: bool = False
    taken: bool = False
    verdict: bool | None = None
    """Of the present condition."""
    joined: str = ""
    """``&&`` or ``||`` where the condition goes on in the next command."""
    before: bool = False
    """Whether an earlier side was taken."""
    decided: bool = True
    """Whether all conditions so far were known."""
    argument: bool = False
    """The subject is an argument of the script: with none given, no arm runs."""
    arm: bool = False
    """Whether one of the patterns of this arm matched."""
    alternatives: bool = False
    """The last pattern was followed by another one of the same arm."""


class _Reader(Expander):
    def __init__(
        self, text: str, sibling: Sibling = lambda name: None, deep: int = 0, left: list[int] | None = None
    ) -> None:
        super().__init__(text)
        self.sibling, self.deep = sibling, deep
        self.left = [MOST_FOLLOWED] if left is None else left
        """How many scripts may still be followed, shared by all readers of a file."""
        self.stack: list[_Branch] = []
        self.loops: list[_Loop] = []
        self.turns = 0
        self.begin = 0
        """Where the present command starts."""
        self.script = Script()
        self.words = 0

    def arguments(self, words: list[Word]) -> None:
        """Set what the script is started with."""
        known = self.script.variables
        for name in [name for name in known if name.isdecimal()]:
            del known[name]
        known |= {str(i): [word] for i, word in enumerate(words, 1)}
        known |= {"@": words, "*": words, "#": [Word(str(len(words)))]}

    def commands(self) -> Iterator[list[Word]]:
        """Commands with their words expanded; assignments are carried out on the way."""
        command: list[list[Piece]] = []
        pending_heredocs: list[str] = []
        while True:
            if not command:
                self.begin = self.at
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

    def inner(self, text: str) -> list[list[Word]]:
        """The commands of a script inside this one; none where it cannot be read."""
        reader = _Reader(text)
        reader.script = replace(self.script, variables=dict(self.script.variables), commands=[])
        try:
            return [command for command in reader.commands() if command]
        except InputError:
            return []

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
            place = next((i for i, word in enumerate(words) if word.text == name), None)
            if name and place is not None:
                inner.arguments(words[place + 1 :])
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
        if command and self.stack and self.stack[-1].joined and _plain(command[0]) not in _KEYWORDS:
            self._joined(command, separator)
            return []
        while command and (keyword := _plain(command[0])) in _KEYWORDS:
            command = self._branch(keyword, command[1:], separator)
        if self.stack and self.stack[-1].kind == "case" and self.stack[-1].pattern:
            command = self._pattern(command, more=separator == "|")
        if separator == ";;" and self.stack:
            self.stack[-1].pattern = True
        if any(branch.skip for branch in self.stack):
            if all(branch.decided for branch in self.stack):
                self.script.unset |= {found[1] for p in command[:1] if (found := ASSIGN.match(p[0][0]))}
            return []
        return self._done(command, here)

    def _done(self, command: list[list[Piece]], here: list[Piece] | None) -> list[Word]:
        """The assignments at the start of a command carried out; the words of what it runs."""
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
        if rest and self._builtin(_plain(rest[0]), rest[1:], here):
            return []
        return [] if setter else [word for pieces in rest for word in self.expand(pieces)]

    def _builtin(self, word: str, rest: list[list[Piece]], here: list[Piece] | None) -> bool:
        """Carry out a command that sets variables; whether it was one."""
        if word == "unset":
            for pieces in rest:
                self.script.variables.pop(_plain(pieces), None)
        elif word == "read":
            self._read(rest, here)
        elif word == "shift":
            self._shift(rest)
        elif word == "printf" and len(rest) > 2 and _plain(rest[0]) == "-v":
            text = printed([word for pieces in rest[2:] for word in self.expand(pieces)])
            self.script.variables[_plain(rest[1])] = [text]
        elif word.startswith("((") or word == "let":
            inner = "".join(text for pieces in rest for text, _ in pieces)
            self.arithmetic(inner if word == "let" else word + inner)
        else:
            return False
        return True

    def _branch(self, keyword: str, rest: list[list[Piece]], separator: str) -> list[list[Piece]]:
        """Follow an if, case or loop; what is left of the command."""
        match keyword:
            case "if":
                self.stack.append(_Branch("if"))
                return self._condition(rest, separator)
            case "elif" | "else" if self.stack:
                top = self.stack[-1]
                top.skip = top.taken
                return (
                    self._condition(rest, separator)
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
                self._loop(keyword, rest)
                return []
            case "done" if self.loops:
                self._turn(self.loops.pop())
                return []
        return rest

    def _condition(self, rest: list[list[Piece]], separator: str) -> list[list[Piece]]:
        """Decide a test that is literal; what cannot be decided counts as true."""
        top = self.stack[-1]
        if any(branch.skip for branch in self.stack[:-1]):
            top.skip = True
            return []
        top.before, top.verdict = top.taken, self._verdict(rest)
        self._settle(top, separator)
        return []

    def _joined(self, command: list[list[Piece]], separator: str) -> None:
        """The next part of a condition with ``&&`` or ``||``."""
        top = self.stack[-1]
        one, two = top.verdict, self._verdict(command)
        decides = top.joined == "||"
        if decides in (one, two):
            top.verdict = decides
        else:
            top.verdict = None if one is None or two is None else not decides
        self._settle(top, separator)

    def _settle(self, top: _Branch, separator: str) -> None:
        top.joined = separator if separator in ("&&", "||") else ""
        if top.verdict is None and not top.joined:
            self.script.branches, top.decided = True, False
        top.skip = top.verdict is False
        top.taken = top.before or not top.skip

    def _verdict(self, rest: list[list[Piece]]) -> bool | None:
        """Whether a condition is true; ``None`` where it is not known."""
        if rest and _plain(rest[0]).startswith("(("):
            value = self.arithmetic("".join(text for pieces in rest for text, _ in pieces))
            return None if value is None else bool(value)
        return test([word for pieces in rest for word in self.expand(pieces)])

    def _loop(self, keyword: str, rest: list[list[Piece]]) -> None:
        """The head of a loop. Loops whose end is known are followed turn by turn; of all others one turn."""
        if any(branch.skip for branch in self.stack):
            self.loops.append(_Loop())
            return
        head = _plain(rest[0]) if rest else ""
        if keyword == "for" and head.startswith("((") and head.count(";") == 2:
            first, condition, step = unliteral(head)[2:-2].split(";")
            self.arithmetic(first)
            verdict = self.arithmetic(condition)
            loop = _Loop(at=self.at, step=step, condition=condition if verdict is not None else None)
        elif keyword == "for":
            words = [word for pieces in rest[2:] for word in self.expand(pieces)] if len(rest) > 2 else []
            self.script.variables[head] = words[:1] or [unknown("$" + head)]
            # Such a loop tries one thing after the other, unless it adds up.
            adds = re.search(r"\w\+=", self.text[self.at : max(self.text.find("done", self.at), self.at)])
            loop = _Loop(at=self.at, words=words[1:] if adds else [], name=head)
            verdict = None if words and not adds else 1
        else:
            verdict = self._verdict(rest)
            verdict = verdict if verdict is None or keyword == "while" else not verdict
            loop = _Loop(at=self.begin, again=bool(verdict))
        self.script.branches |= verdict is None
        if verdict is not None and not verdict:
            self.stack.append(_Branch("loop", skip=True))
        self.loops.append(loop)

    def _turn(self, loop: _Loop) -> None:
        """The end of a turn: go back to where the next one starts, or leave the loop."""
        if self.stack and self.stack[-1].kind == "loop" and self.stack[-1].skip:
            self.stack.pop()
            return
        self.turns += 1
        if self.turns > MOST_TURNS:
            self.script.branches = True
        elif loop.words:
            self.script.variables[loop.name], loop.words = loop.words[:1], loop.words[1:]
            self.at = loop.at
            self.loops.append(loop)
        elif loop.condition is not None:
            self.arithmetic(loop.step or "")
            if self.arithmetic(loop.condition):
                self.at = loop.at
                self.loops.append(loop)
        elif loop.again:
            self.at = loop.at

    def _shift(self, rest: list[list[Piece]]) -> None:
        """``shift`` and ``shift N``, where the arguments are known."""
        count = self.expand(rest[0])[0].text if rest else "1"
        if "@" in self.script.variables and count.isdecimal():
            self.arguments(self.script.variables["@"][int(count) :])

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


def _plain(pieces: list[Piece]) -> str:
    return "".join(text for text, quoted in pieces if not quoted) if len(pieces) <= 2 else ""
