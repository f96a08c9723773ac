"""Usage errors of the command-line library, said as one sentence in our own voice."""

import difflib
import re
from itertools import pairwise
from typing import Literal, get_args, get_origin

import cyclopts
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from meshplan.errors import shown

_NEGATIVE = re.compile(r"-\.?\d")


def sentence(error: cyclopts.CycloptsError) -> str:
    """What is wrong with the command line and the nearest thing that would be right."""
    match error:
        case UnknownOptionError():
            return _unknown_option(error)
        case UnknownCommandError():
            return _unknown_command(error)
        case UnusedCliTokensError():
            return f"unexpected argument {shown((error.unused_tokens or ['?'])[0])}{_see_help(error)}"
        case MissingArgumentError():
            return _missing(error)
        case RepeatArgumentError():
            return f"{error.token.keyword} is given more than once"
        case CoercionError() if error.msg is None:
            return _coercion(error)
        case _:
            error.verbose = False
            text = " ".join(str(error).split()).rstrip(".")
            return text[:1].lower() + text[1:]


def _unknown_option(error: UnknownOptionError) -> str:
    typed = (error.token.keyword or error.token.value).split("=", 1)[0]
    names = [n for a in error.argument_collection if a.parse and a.show for n in a.names]
    names = [n for n in names if n.startswith("-")]
    close = difflib.get_close_matches(typed, names, n=2, cutoff=0.6)
    close = close or [n for n in names if n.startswith(typed)][:2]
    ask = f"; did you mean {' or '.join(close)}?" if close else _see_help(error)
    return f"unknown option {shown(typed).strip(chr(39))}{ask}"


def _unknown_command(error: UnknownCommandError) -> str:
    typed = (error.unused_tokens or ["?"])[0]
    known = [n for n in (error.app or ()) if not n.startswith("-")]
    close = difflib.get_close_matches(typed, known, n=2, cutoff=0.5)
    ask = f"did you mean {' or '.join(close)}?" if close else f"commands are {', '.join(known)}"
    kind = "option" if typed.startswith("-") else "command"
    return f"unknown {kind} {shown(typed)}; {ask}"


def _missing(error: MissingArgumentError) -> str:
    argument = error.argument
    if argument is not None and any(n.startswith("-") for n in argument.names):
        given = bool(argument.tokens) or _typed(error, argument.names)
        after = _after(error, argument.names)
        if _NEGATIVE.match(after):
            return f"{argument.name} {shown(after)} is negative"
        return f"{argument.name} needs a value" if given else f"{argument.name} is missing{_see_help(error)}"
    return f"{_name(error)} is missing{_see_help(error)}"


def _typed(error: cyclopts.CycloptsError, names: tuple[str, ...]) -> bool:
    return any(token.split("=", 1)[0] in names for token in error.root_input_tokens or ())


def _after(error: cyclopts.CycloptsError, names: tuple[str, ...]) -> str:
    """The word that was typed after an option."""
    tokens = [*(error.root_input_tokens or ())]
    return next((then for token, then in pairwise(tokens) if token in names), "")


def _coercion(error: CoercionError) -> str:
    value = shown(error.token.value if error.token else "")
    choices = (
        [str(c) for c in get_args(error.target_type)] if get_origin(error.target_type) is Literal else []
    )
    if not choices:
        kind = {int: "a whole number", float: "a number", bool: "yes or no"}.get(
            error.target_type or str, "valid"
        )
        return f"{_name(error)} {value} is not {kind}"
    close = difflib.get_close_matches(str(value).strip("'").lower(), choices, n=1, cutoff=0.5)
    ask = f"; did you mean {close[0]}?" if close else ""
    return f"{_name(error)} {value} is not one of {', '.join(choices)}{ask}"


def _name(error: cyclopts.CycloptsError) -> str:
    return error.argument.name if error.argument is not None else "an argument"


def _see_help(error: cyclopts.CycloptsError) -> str:
    chain = " ".join(("meshplan", *(error.command_chain or ())))
    return f"; see `{chain} --help`"
