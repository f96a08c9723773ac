"""``meshplan rules``: what makes a plan valid, and where that was read."""

import json
import sys
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from meshplan.cli.help import HelpFormatter
from meshplan.cli.options import Framework, Json
from meshplan.plan.rules import REGISTRY, rule_named, rules_of, warnings_of
from meshplan.report.rules_view import rule_text, rules_data, rules_text
from meshplan.report.screen import Screen

app = cyclopts.App(
    name="rules", help_formatter=HelpFormatter(), usage="Usage: meshplan rules [OPTIONS] [RULE]"
)


@app.default
def rules(
    rule: str | None = None,
    /,
    *,
    framework: Annotated[Framework | None, Parameter(metavar="NAME")] = None,
    json_: Json = False,
) -> int:
    """List the rules of validity, or show one with the places it was read from.

    Parameters
    ----------
    rule
        Its id.
    framework
        Only those that hold for it: any (arithmetic alone), megatron, megatron-bridge, torchtitan, pytorch,
        deepspeed, accelerate, mindspeed or paddle (default: all rules there are).
    """
    if rule is not None:
        found = rule_named(rule)
        one = rules_data((found,), framework or "any")  # the shape of the list
        _show(json.dumps(one, indent=2) + "\n" if json_ else rule_text(found, Screen.of()))
        return 0
    listed = tuple(REGISTRY.values())
    if framework is not None:
        listed = (*rules_of(framework), *warnings_of(framework))
    name = framework or "any"
    if json_:
        _show(json.dumps(rules_data(listed, name), indent=2) + "\n")
    else:
        _show(rules_text(listed, name, Screen.of()))
    return 0


def _show(text: str) -> None:
    sys.stdout.write(text)
