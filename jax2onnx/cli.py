"""The command line: `jax2onnx my.module fn --input "f32[B,128]" --out model.onnx --verify`."""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import importlib.util
import inspect
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence, Sized
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from .errors import InputError, Jax2OnnxError
from .progress import Progress

if TYPE_CHECKING:
    import onnx

_DESCRIPTION = "Turn a JAX function into an ONNX model that computes the same."

_EPILOG = """\
inputs:
  One --input per argument of the function, in JAX's own notation: a dtype and a shape in brackets.
    f32[8,128]         a fixed shape
    f32[B,128]         B may have any size; the same name is the same size in all inputs
    i32[B,T+1]         sizes may be computed from others: + - * // % max() min()
    bf16[]  bool[3]    dtypes: f16 bf16 f32 f64, i8..i64, u8..u64, bool, c64, c128, key<fry> (PRNG keys)
  Without --input, they are taken from annotations such as  def fn(x: "f32[B,128]"), if all arguments have one.

examples:
  jax2onnx my.module fn --input "f32[B,128]" --out model.onnx --verify
  jax2onnx my.module fn --input "f32[B,T,64]" --constraint "T <= 1024" --constraint "B % 8 == 0"
  jax2onnx model.py net.apply --input "f32[1,224,224,3]" --param train=False --opset 21

exit codes:
  0 done, 1 the export or the verification failed, 2 wrong usage. A failure writes no model.
"""


def command() -> NoReturn:
    """The entry point of the program `jax2onnx`."""
    options = _parser().parse_args()
    if not options.debug:
        sys.excepthook = _explain
    sys.exit(run(options))


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line `arguments` say; the exit code. Errors in the user's own code are raised."""
    return run(_parser().parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    """Export as `options` say; the exit code."""
    try:
        _export(options)
    except Jax2OnnxError as error:
        if options.debug:
            traceback.print_exc()
        print(f"jax2onnx: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jax2onnx",
        usage="%(prog)s MODULE FUNCTION [--input SPEC ...] [--out FILE] [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("module", help="module with the function: a name (my.module) or a file (model.py)")
    parser.add_argument(
        "function", help="the function, or anything else that can be called, in the module: fn, net.apply"
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {_version()}")

    group = parser.add_argument_group("what goes in")
    group.add_argument("--input", "-i", action="append", metavar="SPEC", help='an argument, such as "f32[B,128]"')
    group.add_argument(
        "--param", "-p", action="append", default=[], metavar="NAME=VALUE", help="a keyword argument (a Python literal)"
    )
    group.add_argument(
        "--constraint",
        "-c",
        action="append",
        default=[],
        metavar="C",
        help='what is known of sizes, such as "T <= 1024"',
    )
    group.add_argument("--noise", action="store_true", help="noise is an input of the model, in place of random keys")
    group.add_argument("--float64", action="store_true", help="work with 64-bit types (JAX's x64)")

    group = parser.add_argument_group("what comes out")
    group.add_argument("--out", "-o", metavar="FILE", help="file to write (default: FUNCTION.onnx)")
    group.add_argument("--opset", type=int, metavar="N", help="version of the ONNX operators (default: 23)")
    group.add_argument("--weights-dtype", choices=["float16", "bfloat16"], help="store float32 weights in this dtype")
    group.add_argument("--modules", action="store_true", help="show the modules of the program as ONNX functions")
    group.add_argument(
        "--provenance", choices=["source", "stack"], help="note in each node the line of your code, or the whole stack"
    )
    group.add_argument("--name", metavar="NAME", help="name of the graph (default: the function's)")
    group.add_argument("--input-name", action="append", metavar="NAME", help="name of an input, in order")
    group.add_argument("--output-name", action="append", metavar="NAME", help="name of an output, in order")
    group.add_argument(
        "--nchw-input", action="append", metavar="NAME", help="input that is NHWC in JAX and NCHW in the model"
    )
    group.add_argument(
        "--nchw-output", action="append", metavar="NAME", help="output that is NHWC in JAX and NCHW in the model"
    )
    group.add_argument(
        "--external-data",
        type=_size,
        nargs="?",
        const=0,
        metavar="SIZE",
        help="put weights into FILE.data if the model is larger than SIZE, e.g. 100MB (no SIZE: always; default: 2GB)",
    )
    group.add_argument("--max-shard-size", type=_size, metavar="SIZE", help="largest size of a FILE-...-of-....data")
    group.add_argument("--web", action="store_true", help="one self-contained file, or an error")
    group.add_argument(
        "--loosen-internal-shapes", action="store_true", help="leave out shapes inside Loop, Scan and If bodies"
    )

    group = parser.add_argument_group("checking and explaining")
    group.add_argument("--verify", action="store_true", help="run the model in ONNX Runtime and compare it with JAX")
    group.add_argument("--record", metavar="FILE", help="write a JSON report of the primitives in the function")
    group.add_argument("--quiet", "-q", action="store_true", help="print errors only")
    group.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def _export(options: argparse.Namespace) -> None:
    fn = _find(_import(options.module), options.function, options.module)
    inputs = options.input if options.input is not None else _annotated_inputs(fn, options.function)
    import onnx  # after the user's module, so that a typo in its name is reported at once

    from .api import to_onnx

    given = {
        "opset": options.opset,
        "input_names": options.input_name,
        "output_names": options.output_name,
        "inputs_as_nchw": options.nchw_input,
        "outputs_as_nchw": options.nchw_output,
        "external_data_limit": options.external_data,
        "max_shard_size": options.max_shard_size,
        "weights_dtype": options.weights_dtype,
        "provenance": options.provenance,
        "functions": "modules" if options.modules else None,
        "random": "noise" if options.noise else None,
        "record_primitive_calls_file": options.record,
    }
    text = f"Converting {options.module}:{options.function}"
    with _log_to_stderr(options.quiet), Progress(text, quiet=options.quiet) as progress:
        path = to_onnx(
            fn,
            inputs,
            dict(map(_parameter, options.param)),
            options.name or options.function,
            enable_double_precision=options.float64,
            loosen_internal_shapes=options.loosen_internal_shapes,
            return_mode="file",
            output_path=options.out or f"{options.function}.onnx",
            export_mode="web" if options.web else "standard",
            constraints=options.constraint,
            verify=options.verify,
            progress=progress.report,
            **{name: value for name, value in given.items() if value is not None},
        )
    assert isinstance(path, str)
    if not options.quiet:
        print(_summary(path, onnx.load(path, load_external_data=False)))


def _import(name: str) -> ModuleType:
    """The module of a name, or in a file. As for `python -m`, the current folder can be imported from."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if name.endswith(".py"):
        if not os.path.isfile(name):
            raise InputError(f"There is no file {name!r}.")
        module_name = os.path.splitext(os.path.basename(name))[0]
        spec = importlib.util.spec_from_file_location(module_name, name)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(module_name, module)  # as for an import: dataclasses and pickle look modules up
        sys.path.insert(0, os.path.dirname(os.path.abspath(name)))
        spec.loader.exec_module(module)
        return module
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise  # the module is there; something that it imports is not
        raise InputError(f"There is no module {name!r} in the current folder or among the installed ones.") from error


def _find(module: ModuleType, name: str, module_name: str) -> Callable[..., Any]:
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise InputError(f"{module_name} has no {name!r}.") from None
    if not callable(found):
        raise InputError(f"{module_name}:{name} is a {type(found).__name__}, which cannot be called.")
    return found


def _annotated_inputs(fn: Callable[..., Any], name: str) -> list[str]:
    """Specs from the annotations of the arguments that must be given; none if there are no such arguments."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        raise InputError(f'Give one --input for each argument of {name}, such as --input "f32[B,128]".') from None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.kind in positional and p.default is p.empty]
    specs = [p.annotation.strip("'\"") if isinstance(p.annotation, str) else "" for p in needed]
    if not all(re.fullmatch(r"[\w<>]+\[.*\]", spec) for spec in specs):
        names = ", ".join(p.name for p in needed)
        raise InputError(f'Give one --input for each argument of {name}({names}), such as --input "f32[B,128]".')
    return specs


def _parameter(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise InputError(f"--param is {text!r}; it looks like NAME=VALUE.")
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return name, value  # a plain word is a string


def _size(text: str) -> int:
    match = re.fullmatch(r"([\d.]+)\s*(|[kMGT]i?)B?", text.strip())
    if match is None or match[1].count(".") > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 500MB or 2GiB")
    base = 1024 if match[2].endswith("i") else 1000
    return int(float(match[1]) * base ** ("kMGT".index(match[2][0]) + 1 if match[2] else 0))


def _summary(path: str, model: onnx.ModelProto) -> str:
    """What was written, for people."""
    from onnx import helper

    entries = [entry for tensor in model.graph.initializer for entry in tensor.external_data]
    data = sorted({entry.value for entry in entries if entry.key == "location"})
    files = [path, *(os.path.join(os.path.dirname(os.path.realpath(path)), name) for name in data)]
    size = sum(map(os.path.getsize, files))
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    beside = f" and {', '.join(data)}" if data else ""
    lines = [f"Wrote {path}{beside}: {size:,} bytes, {_count(model.graph.node, 'node')}, opset {opset}."]
    for what, values in (("input", model.graph.input), ("output", model.graph.output)):
        for value in values:
            tensor = value.type.tensor_type
            dims = ",".join(dim.dim_param or str(dim.dim_value) for dim in tensor.shape.dim)
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            lines.append(f"  {what:6} {value.name}: {dtype}[{dims}]")
    return "\n".join(lines)


def _count(things: Sized, what: str) -> str:
    return f"{len(things)} {what}{'s' if len(things) != 1 else ''}"


def _version() -> str:
    try:
        return version("jax2onnx")
    except PackageNotFoundError:
        return "(not installed)"


@contextlib.contextmanager
def _log_to_stderr(quiet: bool) -> Iterator[None]:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("jax2onnx")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _explain(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What is printed for an error that is not one of ours, in place of a traceback: what and where."""
    from jax2onnx.compat.sources import is_library

    ours = os.path.dirname(os.path.abspath(__file__))
    frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(ours)]
    own = [frame for frame in frames if not is_library(frame.filename)]
    where = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    print(f"jax2onnx: {kind.__name__}: {error}{where}\nRun again with --debug for a traceback.", file=sys.stderr)
