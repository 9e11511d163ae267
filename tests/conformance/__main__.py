"""Run JAX's own test cases for its primitives through the exporter and ONNX Runtime.

examples:
  python -m tests.conformance                                  all cases, on two processes
  python -m tests.conformance --group sort top_k               the cases of some groups
  python -m tests.conformance --match 'svd.*complex64'         cases whose full name matches
  python -m tests.conformance --sample 3                       3 cases of each group, the same each time
  python -m tests.conformance --sample 3 --symbolic            with symbolic leading axes, where JAX can export that
  python -m tests.conformance --sample 3 --passes              with and without the optimizer: equally close to JAX?
  python -m tests.conformance --failed-from build/conformance/jax-0.10.2.json
                                                               those that were not ok in an earlier run
  python -m tests.conformance --match 'eigh.*50_50' --debug    in this process, with tracebacks, models kept

Filters combine. Each case ends with one verdict: ok, static (with --symbolic: JAX itself cannot do it), convert (the
export raised UnsupportedError), error (any other exception), check, load or run (the step that failed), wrong, timeout
or crash. The exit code is 1 if a case is none of ok, static and convert, 2 for wrong usage, else 0.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jax2onnx import opsets


def main() -> int:
    """Run the chosen cases; the exit code."""
    parser = _parser()
    options = parser.parse_args()

    # Only now, so that --help is quick.
    import jax

    from tests.conformance import cases, report
    from tests.conformance.judge import judge
    from tests.conformance.passes import judge_passes
    from tests.conformance.pool import judge_all

    names = _chosen(parser, options, cases.load())
    if options.list:
        print("\n".join(names))
        return 0
    start = time.monotonic()
    how = {"seed": options.seed, "dynamic": options.dynamic, "symbolic": options.symbolic, "opset": options.opset}
    groups = {name: cases.load()[name].group_name for name in names}
    if options.passes:
        judge_both = functools.partial(judge_passes, seed=options.seed)
        results = judge_all(groups, judge_both, workers=options.workers, timeout=options.timeout)
    elif options.debug:
        results = _debug(names, how)
    else:
        judge_here = functools.partial(judge, cache=not options.no_cache, **how)
        results = judge_all(groups, judge_here, workers=options.workers, timeout=options.timeout)
    run = report.finished(_with_progress(results, len(names)))
    whole = len(names) == len(cases.load()) and not (
        options.dynamic or options.symbolic or options.passes or options.opset != opsets.DEFAULT
    )
    path = options.results or cases.BUILD / (f"jax-{jax.__version__}.json" if whole else "partial.json")
    report.save(run, path)
    if options.table:
        options.table.parent.mkdir(parents=True, exist_ok=True)
        others = [other for other in map(report.read, options.beside) if other.versions["jax"] != jax.__version__]
        options.table.write_text(report.table(sorted([*others, run], key=lambda r: r.versions["jax"])))
    print(report.summary(run))
    print(f"{time.monotonic() - start:.0f} s; results in {path}")
    return 0 if all(r.verdict in ("ok", "static", "convert") for r in run.results) else 1


def _parser() -> argparse.ArgumentParser:
    doc = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance",
        description=doc[0],
        epilog=doc[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_argument_group("which cases")
    which.add_argument("--group", nargs="+", metavar="NAME", help="only these groups (mostly names of primitives)")
    which.add_argument(
        "--match", metavar="REGEX", help="only cases in whose full name this regular expression is found"
    )
    which.add_argument(
        "--names", type=Path, metavar="FILE", help="only cases listed in this file, a full name per line"
    )
    which.add_argument("--failed-from", type=Path, metavar="FILE", help="only cases not ok in this results file")
    which.add_argument("--verdict", nargs="+", metavar="V", help="with --failed-from: only those with these verdicts")
    which.add_argument("--sample", type=int, metavar="K", help="at most K cases of each group, spread over the group")
    which.add_argument("--list", action="store_true", help="print the full names of these cases and stop")
    how = parser.add_argument_group("how")
    how.add_argument("--workers", type=int, default=2, metavar="N", help="processes (default: 2)")
    how.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds for each case (default: 60)")
    how.add_argument("--seed", type=int, default=0, metavar="N", help="for the arguments of the cases (default: 0)")
    how.add_argument(
        "--dynamic", action="store_true", help="pass arrays that cases hold fixed (as scatter's indices) as inputs"
    )
    how.add_argument(
        "--passes", action="store_true", help="export with and without the optimizer: is the model as close to JAX?"
    )
    how.add_argument("--symbolic", action="store_true", help="make the leading axes of the inputs symbolic")
    how.add_argument("--opset", type=int, default=opsets.DEFAULT, metavar="N", help="the opset of the models")
    how.add_argument("--no-cache", action="store_true", help="compute JAX's results anew instead of keeping them")
    how.add_argument("--debug", action="store_true", help="no workers, no timeout; print tracebacks, keep the models")
    out = parser.add_argument_group("output")
    out.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        help="default: build/conformance/jax-VERSION.json, or partial.json with a filter",
    )
    out.add_argument("--table", type=Path, metavar="FILE", help="write the coverage table (docs/coverage.md)")
    out.add_argument(
        "--beside",
        type=Path,
        nargs="*",
        default=[],
        metavar="FILE",
        help="results with other JAX to show in the table too",
    )
    return parser


def _chosen(parser: argparse.ArgumentParser, options: argparse.Namespace, harnesses: dict[str, Any]) -> list[str]:
    """The names of the cases that pass all filters, sorted."""
    from tests.conformance import report

    names = sorted(harnesses)
    group_of = {name: harness.group_name for name, harness in harnesses.items()}
    if options.group:
        if unknown := set(options.group) - set(group_of.values()):
            parser.error(
                f"no such group: {', '.join(sorted(unknown))}. There are: {' '.join(sorted(set(group_of.values())))}"
            )
        names = [name for name in names if group_of[name] in options.group]
    if options.match:
        names = [name for name in names if re.search(options.match, name)]
    if options.names:
        listed = set(options.names.read_text().split())
        if unknown := listed - set(harnesses):
            parser.error(f"{options.names} lists {len(unknown)} unknown cases, such as {min(unknown)}")
        names = [name for name in names if name in listed]
    if options.failed_from:
        verdicts = {r.name: r.verdict for r in report.read(options.failed_from).results}
        wanted = options.verdict or [verdict for verdict in verdicts.values() if verdict != "ok"]
        names = [name for name in names if verdicts.get(name) in wanted]
    if options.sample is not None:
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(group_of[name], []).append(name)
        names = [name for group in groups.values() for name in _spread(group, options.sample)]
    if not names:
        parser.error("no case passes these filters")
    return names


def _spread(names: list[str], k: int) -> list[str]:
    """k of the names at equal distances: sorted by name, alike cases are neighbours."""
    k = min(k, len(names))
    return [names[(2 * i + 1) * len(names) // (2 * k)] for i in range(k)]


def _with_progress(results: Iterator[Any], total: int) -> Iterator[Any]:
    """The results, and a line that counts them if a person is watching."""
    watched = sys.stderr.isatty()
    for i, result in enumerate(results, 1):
        if watched:
            print(f"\r{i}/{total} ", end="\n" if i == total else "", file=sys.stderr, flush=True)
        yield result


def _debug(names: list[str], how: dict[str, Any]) -> Iterator[Any]:
    """Judge the cases here, say everything about each."""
    from tests.conformance import cases
    from tests.conformance.judge import judge

    def keep(name: str, model: Any) -> None:
        path = cases.BUILD / "models" / f"{name[:200]}.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(model.SerializeToString())
        print(f"model: {path}")

    for name in names:
        print(f"--- {name}")
        result = judge(name, keep=keep, print_tracebacks=True, **how)
        print(f"{result.verdict} {result.reason}")
        yield result


if __name__ == "__main__":
    sys.exit(main())
