"""``horocache doctor``: prints what works, what is wrong, and how to repair it."""

import json
import sys
from collections.abc import Sequence

from horocache.base.untrusted_text import printable
from horocache.doctor import core, libraries, system
from horocache.doctor.finding import Finding, State

_STYLES = {State.OK: "green", State.INFO: "", State.WARNING: "yellow", State.PROBLEM: "bold red"}


def run(*, as_json: bool) -> int:
    """Print all findings; return 1 if something is wrong, else 0."""
    findings = [*core.look(), *system.look(), *libraries.look()]
    problems = [finding for finding in findings if finding.state is State.PROBLEM]
    if as_json:
        report = {"ok": not problems, "findings": [finding.as_json() for finding in findings]}
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    else:
        _show(findings)
    return 1 if problems else 0


def _show(findings: Sequence[Finding]) -> None:
    from rich.console import Console  # noqa: PLC0415  (--json needs no terminal library)
    from rich.text import Text  # noqa: PLC0415

    console = Console(highlight=False, soft_wrap=True)
    section = ""
    for finding in findings:
        if finding.section != section:
            section = finding.section
            console.print(Text(section, style="bold"))
        line = Text(f"  {finding.state.value:<8}", style=_STYLES[finding.state])
        line.append(printable(f"{finding.name:<28} {finding.value}"), style="none")
        console.print(line)
        if finding.fix:
            fix = printable(f"{'':<10}{'':<28} fix: {finding.fix}")
            console.print(Text(fix, style=_STYLES[finding.state]))
    console.print(Text(printable(_verdict(findings))))


def _verdict(findings: Sequence[Finding]) -> str:
    wrong = [finding for finding in findings if finding.state is State.PROBLEM]
    warned = [finding for finding in findings if finding.state is State.WARNING]
    if wrong:
        names = ", ".join(f"{finding.section}: {finding.name}" for finding in wrong)
        return f"{len(wrong)} problem{'s' if len(wrong) != 1 else ''}: {names}"
    return f"nothing is wrong; {len(warned)} warning{'s' if len(warned) != 1 else ''}" if warned else "nothing is wrong"
