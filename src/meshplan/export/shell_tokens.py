"""A shell script in tokens: words in pieces, separators, here-documents."""

from __future__ import annotations

import re

from meshplan.errors import InputError

NAME = r"[A-Za-z_][A-Za-z0-9_]*"
ASSIGN = re.compile(rf"^({NAME})(\+?)=")
_DESCRIPTOR = re.compile(r"[0-9]+[<>]")
Piece = tuple[str, bool]
"""Raw text and whether it stood in quotes; raw text may hold ``$`` only where it is to be expanded."""


class Tokens:
    """The tokens of a text, one after the other. ``at`` is the place of the next."""

    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self.at = 0
        self.here: list[Piece] | None = None
        """What stood after the last ``<<<``."""

    def directive(self, text: str) -> None:
        """Called for the text of every ``#SBATCH`` line."""

    def next(self) -> str | list[Piece] | None:
        """A separator, a here-document (``<<EOF``), or a word in pieces."""
        text = self.text
        while self.at < len(text):
            ch = text[self.at]
            if ch in " \t":
                self.at += 1
            elif text.startswith("\\\n", self.at):
                self.at += 2
            elif ch == "#":
                end = text.find("\n", self.at)
                line = text[self.at : len(text) if end < 0 else end]
                if line.startswith("#SBATCH"):
                    self.directive(line[7:].strip())
                self.at = len(text) if end < 0 else end
            elif ch in "\n;&|":
                two = text[self.at : self.at + 2]
                token = two if two in ("&&", "||", ";;") else ch
                self.at += len(token)
                return token
            elif ch in "<>" or _DESCRIPTOR.match(text, self.at):
                while text[self.at].isdigit():
                    self.at += 1
                return self._redirect()
            elif text.startswith("((", self.at) and (close := self._closing(self.at)):
                inner, self.at = text[self.at : close], close
                return [(literal(inner), False)]
            elif ch in "()":
                self.at += 1
                return ";"
            else:
                return self._word()
        return None

    def _closing(self, start: int) -> int | None:
        """Where ``(( … ))`` from here ends; ``None`` where it is no arithmetic."""
        depth, at = 0, start
        while at < len(self.text) and self.text[at] != "\n":
            depth += {"(": 1, ")": -1}.get(self.text[at], 0)
            at += 1
            if depth == 0:
                return at if self.text[at - 2 : at] == "))" else None
        return None

    def _redirect(self) -> str | list[Piece] | None:
        found = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_0-9]+)\1").match(self.text, self.at)
        if found and not self.text.startswith("<<<", self.at):
            self.at = found.end()
            return "<<" + found[2]
        text, start = self.text, self.at
        while self.at < len(self.text) and self.text[self.at] in "<>&":
            self.at += 1
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1
        if self.at < len(self.text) and self.text[self.at] not in "\n;|&()":
            pieces = self._word()  # the file, which is of no interest
            if text.startswith("<<<", start):
                self.here = pieces
        return self.next()

    def _word(self) -> list[Piece]:
        pieces: list[Piece] = []
        text, plain = self.text, ""
        while self.at < len(text):
            ch = text[self.at]
            if ch in " \t\n;|&<>)":
                break
            if ch == "(":
                if ASSIGN.fullmatch(plain):  # NAME=( … )
                    pieces += [(plain, False), ("(" + self._until_close() + ")", False)]
                    return pieces
                if not plain and not pieces:
                    break
                plain += ch
                self.at += 1
            elif ch == "\\":
                if text.startswith("\\\n", self.at):
                    self.at += 2
                    continue
                pieces += [(plain, False), (literal(text[self.at + 1 : self.at + 2]), True)]
                plain = ""
                self.at += 2
            elif ch in "'\"":
                pieces += [(plain, False), (self._quoted(ch), True)]
                plain = ""
            elif ch == "$":
                plain += self._dollar()
            elif ch == "`":
                end = text.find("`", self.at + 1)
                if end < 0:
                    raise self._unclosed("`")
                plain += "$(" + text[self.at + 1 : end] + ")"
                self.at = end + 1
            else:
                plain += ch
                self.at += 1
        return [*pieces, (plain, False)]

    def _quoted(self, quote: str) -> str:
        """The inside of quotes; in single quotes nothing expands."""
        start = self.at
        self.at += 1
        out = ""
        text = self.text
        while self.at < len(text):
            ch = text[self.at]
            if ch == quote:
                self.at += 1
                return out
            if quote == '"' and ch == "\\":
                after = text[self.at + 1 : self.at + 2]
                if after != "\n":
                    out += literal(after) if after in '$`"\\' else "\\" + after
                self.at += 2
            elif quote == '"' and ch == "$":
                out += self._dollar()
            else:
                out += literal(ch) if quote == "'" else ch
                self.at += 1
        self.at = start
        raise self._unclosed(quote)

    def _dollar(self) -> str:
        """A ``$`` expansion as written, whole, nested brackets included."""
        text, start = self.text, self.at
        for opening in ("$((", "$(", "${"):
            if text.startswith(opening, start):
                depth, at = 0, start + 1
                while at < len(text):
                    if text[at] in "({":
                        depth += 1
                    elif text[at] in ")}":
                        depth -= 1
                        if depth == 0:
                            self.at = at + 1
                            return text[start : self.at]
                    at += 1
                raise self._unclosed(opening)
        found = re.compile(rf"\$({NAME}|[0-9@*#?$!-])").match(text, start)
        self.at = found.end() if found else start + 1
        return text[start : self.at] if found else literal("$")

    def _until_close(self) -> str:
        """The inside of the parentheses of an array."""
        inner = Tokens(self.text)
        inner.at = self.at + 1
        start = inner.at
        while inner.at < len(self.text) and self.text[inner.at] != ")":
            before = inner.at
            if self.text[inner.at] in " \t\n;&|<>(":
                inner.at += 1
            elif self.text[inner.at] == "#" and self.text[inner.at - 1] in " \t\n(":
                end = self.text.find("\n", inner.at)
                inner.at = len(self.text) if end < 0 else end
            else:
                inner._word()
            inner.at = max(inner.at, before + 1)
        if inner.at >= len(self.text):
            raise self._unclosed("(")
        self.at = inner.at + 1
        return self.text[start : inner.at]

    def _unclosed(self, what: str) -> InputError:
        line = self.text.count("\n", 0, self.at) + 1
        return InputError(f"line {line}: {what} is never closed")


_DOLLAR, _HIDDEN = "$", "\ue000"
"""A dollar sign that expands nothing is hidden until words are whole."""


def literal(text: str) -> str:
    """Text whose dollar signs expand nothing."""
    return text.replace(_DOLLAR, _HIDDEN)


def unliteral(text: str) -> str:
    """The same with its dollar signs back."""
    return text.replace(_HIDDEN, _DOLLAR)
