"""`to_onnx`: the pipeline, from a JAX callable to an ONNX model."""

from __future__ import annotations

import functools
import json
import logging
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import onnx
import onnx_ir as ir
from jax.extend.core import ClosedJaxpr, Primitive
from jax.typing import DTypeLike

from jax2onnx import compat, opsets, report, side_effects
from jax2onnx.assumptions import assumed
from jax2onnx.compat.programs import Inventory
from jax2onnx.decompose import decompose
from jax2onnx.decompose.outline import outline
from jax2onnx.decompose.repeats import share_repeats
from jax2onnx.emit import check_emit_options, check_output_path, emit
from jax2onnx.errors import InputError, UnsupportedError
from jax2onnx.frontends import source_of
from jax2onnx.garbage import resume_garbage_collection, without_garbage_collection
from jax2onnx.loosen import loosen
from jax2onnx.lower import COMPOSITES, LOWERINGS, Rule, lower
from jax2onnx.naming import Names, array_key, assign_names, final_names
from jax2onnx.noise import noise_as_input
from jax2onnx.optimize import optimize, optimize_part
from jax2onnx.optimize.shared import remove_unused
from jax2onnx.options import check_callables, check_choices, check_flags, check_lists, check_mappings, check_names
from jax2onnx.running import INPUTS, OUTPUTS
from jax2onnx.sizes import describe_constraints
from jax2onnx.specs import input_specs, needs_x64
from jax2onnx.storage import storage_dtype, store_weights
from jax2onnx.structure import describe
from jax2onnx.targets import check_target, legalize
from jax2onnx.targets.nonempty import nonempty_sizes
from jax2onnx.tracing import Program, trace
from jax2onnx.verify import verify as verify_model
from jax2onnx.weights import bake, check_has_weights, loaded, weight_specs

log = logging.getLogger("jax2onnx")

PROVENANCE_VARIABLE = "JAX2ONNX_ENABLE_STACKTRACE_METADATA"
NORMALIZATION_MODES = ("auto", "prefer_native", "force_decomposed")


@without_garbage_collection()
def to_onnx(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    input_params: Mapping[str, Any] | None = None,
    model_name: str = "jax_model",
    opset: int = opsets.DEFAULT,
    *,
    enable_double_precision: bool = False,
    loosen_internal_shapes: bool = False,
    record_primitive_calls_file: str | os.PathLike[str] | None = None,
    return_mode: str = "proto",
    output_path: str | os.PathLike[str] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    inputs_as_nchw: Sequence[int | str] | None = None,
    outputs_as_nchw: Sequence[int | str] | None = None,
    export_mode: str = "standard",
    normalization_mode: str = "auto",
    constraints: Sequence[str] | None = (),
    lowerings: Mapping[Primitive, Rule] | None = None,
    target: str = "onnxruntime",
    functions: str | None = None,
    provenance: str | None = None,
    random: str | None = None,
    weights: Any = None,
    weights_as_inputs: bool = False,
    load_weight: Callable[[str], Any] | None = None,
    weights_dtype: DTypeLike | None = None,
    verify: bool = False,
    external_data_limit: int | None = None,
    max_shard_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> onnx.ModelProto | ir.Model | str:
    """Convert a JAX callable to an ONNX model that computes the same.

    Args:
        fn: any callable that JAX can trace.
        inputs: one entry per positional argument: an array, a `jax.ShapeDtypeStruct`, a shape tuple (with strings for
            dimensions that may vary), a string such as "f32[B,128]", or a pytree of those.
        input_params: keyword arguments of `fn`. Numbers and arrays become inputs of the model if `fn` can take them
            traced; everything else is baked in.
        model_name: the name of the ONNX graph.
        opset: the version of the ONNX operator set to write the model in.
        enable_double_precision: trace with 64-bit types; shape tuples are then float64.
        loosen_internal_shapes: leave out the shapes of values inside Loop, Scan and If bodies.
        record_primitive_calls_file: write a JSON report of the primitives of the program to this file.
        return_mode: "proto" for an `onnx.ModelProto`, "ir" for an `onnx_ir.Model`, "file" to write `output_path`.
        output_path: the file to write. Nothing is written unless the whole export succeeds.
        input_names, output_names: names of the model's inputs and outputs, in order.
        inputs_as_nchw, outputs_as_nchw: inputs and outputs (by position or name) that are NHWC in `fn`, NCHW outside.
        export_mode: "standard", or "web" for one self-contained file.
        normalization_mode: how layer, RMS, group, instance and batch normalizations are written: "auto" as operators
            where those are no slower, "prefer_native" as operators, "force_decomposed" as plain arithmetic.
        constraints: what is known of symbolic dimensions, such as "T <= 1024". (Where you do not call this function
            yourself, `with assuming("T <= 1024"):` says it.)
        lowerings: your own lowering rules, by primitive, for this call only.
        target: the runtime the model must load in; "onnx" for the pure standard.
        functions: "modules" makes the modules of the program visible as ONNX functions, shared by those that compute
            the same with other weights.
        provenance: "source" notes in each node the primitive and the line of your code that it comes from; "stack" also
            all lines that led there. By default, as the environment variable JAX2ONNX_ENABLE_STACKTRACE_METADATA says:
            1 and 2 are these two, 0 is neither.
        random: "noise" makes each draw of random numbers an input of the model, `noise/normal_0`, in place of the keys:
            standard normal, uniform in [0, 1), or random bits. (`gamma`, `poisson` and others that draw until they
            accept are an error.)
        weights: the first argument of `fn`, a pytree of parameters that become initializers under their own names. They
            may be `jax.ShapeDtypeStruct`s, which `load_weight` reads when the file is written.
        weights_as_inputs: leave the weights as inputs of the model.
        load_weight: a function from the name of a weight, such as "params/dense/kernel", to its array;
            `jax2onnx.loaders` has some that read checkpoints.
        weights_dtype: "float16" or "bfloat16" stores the float32 weights in half precision; the model still computes in
            float32.
        verify: run the model in ONNX Runtime and compare it with JAX.
        external_data_limit, max_shard_size: when and how weights go to files beside the model.
        progress: called with (bytes written, bytes in all) while a file is written.

    Example:
        >>> import jax.numpy as jnp
        >>> model = to_onnx(lambda x: jnp.tanh(x) + 1, [("B", 3)])
        >>> [node.op_type for node in model.graph.node]
        ['Tanh', 'Add']
    """
    opsets.check(opset)
    check_target(target)
    check_emit_options(return_mode, output_path, export_mode, external_data_limit, max_shard_size)
    if output_path is not None and return_mode != "file":
        warnings.warn(f'return_mode is "{return_mode}": nothing is written to output_path.', stacklevel=3)
    check_lists(input_names=input_names, output_names=output_names, constraints=constraints)
    check_lists(inputs_as_nchw=inputs_as_nchw, outputs_as_nchw=outputs_as_nchw)
    check_mappings(input_params=(input_params, str, "names"), lowerings=(lowerings, Primitive, "primitives of JAX"))
    check_callables(load_weight=load_weight, progress=progress)
    check_callables(**{f"lowerings[{primitive}]": rule for primitive, rule in (lowerings or {}).items()})
    check_flags(enable_double_precision=enable_double_precision, loosen_internal_shapes=loosen_internal_shapes)
    check_flags(weights_as_inputs=weights_as_inputs, verify=verify)
    check_names(model_name=model_name)
    if record_primitive_calls_file is not None:
        check_output_path(record_primitive_calls_file, "record_primitive_calls_file")
        if output_path is not None and os.path.realpath(record_primitive_calls_file) == os.path.realpath(output_path):
            raise InputError(f"output_path and record_primitive_calls_file are both {os.fspath(output_path)!r}.")
    check_choices(
        normalization_mode=(normalization_mode, NORMALIZATION_MODES),
        functions=(functions, (None, "modules")),
        random=(random, (None, "noise")),
    )
    if weights is None:
        check_has_weights(weights_as_inputs=weights_as_inputs, load_weight=load_weight)
    elif weights_as_inputs and load_weight is not None:
        raise InputError("load_weight reads what the model holds, but with weights_as_inputs it holds no weights.")
    provenance_level = _provenance_level(provenance)
    stored_dtype = storage_dtype(weights_dtype)
    constraints = (*(constraints or ()), *assumed())
    default_dtype = np.float64 if enable_double_precision else np.float32
    with compat.evaluation.x64(enable_double_precision or jax.config.jax_enable_x64):
        specs = input_specs(inputs, default_dtype, constraints)
    rules = {**LOWERINGS, **(lowerings or {})}
    source = source_of(fn)
    abstract = [weight for weight in jax.tree.leaves(weights) if isinstance(weight, jax.ShapeDtypeStruct)]
    wide = enable_double_precision or jax.config.jax_enable_x64 or needs_x64([specs, abstract])
    with compat.evaluation.x64(wide), jax.disable_jit(False):  # so that loops stay loops
        arguments = specs if weights is None else [weight_specs(weights), *specs]
        if random == "noise":
            noisy = noise_as_input(source.fn, arguments, input_params or {}, kept=int(weights is not None))
            source, arguments, input_params = source._replace(fn=noisy.fn), noisy.args, noisy.kwargs
            specs = arguments if weights is None else arguments[1:]
        program = trace(source.fn, arguments, input_params or {})
        inside = weights is not None and not weights_as_inputs
        count = len(jax.tree.leaves(weights)) if inside else 0
        baked = bake(weights, program.input_names[:count], load_weight) if count else []
        names = final_names(program.input_names[count:], input_names, program.output_names, output_names)
    with compat.evaluation.x64(wide), jax.disable_jit(False), compat.evaluation.lenient():
        to_core = functools.partial(decompose, core=rules, kept={*COMPOSITES, *(lowerings or {})})
        live, core, inventory = _to_core(program.jaxpr, to_core)
        if functions == "modules":
            core = outline(core)
        if record_primitive_calls_file is not None:
            report.write_primitive_calls(live, record_primitive_calls_file)
        report.check_all_supported(core, rules, inventory if functions is None else None)

        def build(provenance_level: int) -> ir.Model:
            model, write_out_composites = lower(
                core if provenance_level else share_repeats(core, [True] * count),  # a copy has no line of its own
                input_names=names.inputs,
                output_names=names.outputs,
                model_name=model_name,
                opset=opset,
                ir_version=opsets.ir_version(opset),
                lowerings=rules,
                decompose=to_core,
                names={array_key(array): name for name, array in source.arrays.items()},
                weights=baked,
                inputs_as_nchw=_positions(inputs_as_nchw, names.inputs, core.in_avals[count:], "inputs_as_nchw"),
                outputs_as_nchw=_positions(outputs_as_nchw, names.outputs, core.out_avals, "outputs_as_nchw"),
                provenance_level=provenance_level,
                optimize_part=functools.partial(optimize_part, opset=opset, normalization_mode=normalization_mode),
            )
            optimize(model, write_out_composites, normalization_mode)
            return model

        model = build(provenance_level)
        try:
            legalize(model, target)
        except UnsupportedError:
            if not provenance_level:
                legalize(build(1), target)  # the same error, with the line that it is about
            raise
    remove_unused(model)
    if loosen_internal_shapes or os.environ.get("JAX2ONNX_LOOSEN_INTERNAL_SHAPES") == "1":
        loosen(model)
    if stored_dtype is not None:
        store_weights(model, stored_dtype)
    assign_names(model)
    described = describe_constraints(specs, constraints, nonempty_sizes(model, target, specs))
    model.metadata_props.update(_structure(program, names, count, inside) | described)

    def check(exported: onnx.ModelProto | str) -> None:
        options: dict[str, Any] = {"inputs_as_nchw": inputs_as_nchw, "outputs_as_nchw": outputs_as_nchw}
        options["precision"] = stored_dtype
        options["given"] = jax.tree.leaves(weights) if weights_as_inputs else []
        function = functools.partial(source.fn, loaded(weights, baked)) if inside else source.fn
        taken = specs if inside else arguments
        log.info(verify_model(function, taken, exported, input_params, x64=wide, **options))

    if return_mode != "ir" or verify:  # which run the code of loaders and runtimes
        resume_garbage_collection()
    return emit(
        model,
        return_mode,  # type: ignore[arg-type]
        output_path,
        export_mode=export_mode,  # type: ignore[arg-type]
        external_data_limit=external_data_limit,
        max_shard_size=max_shard_size,
        progress=progress,
        check=check if verify else None,
    )


def _to_core(traced: ClosedJaxpr, to_core: Callable[..., ClosedJaxpr]) -> tuple[ClosedJaxpr, ClosedJaxpr, Inventory]:
    """A program without what no model does, the same in the primitives that are lowered, and what that consists of."""
    traced = compat.programs.without_references(traced)
    inventory = compat.programs.inventory(traced)
    live = compat.programs.remove_dead_code(side_effects.drop(traced, inventory))
    core = to_core(live, inventory=inventory)
    if core is not live:  # the primitives that other libraries define have checks, too
        inventory = compat.programs.inventory(core)
        unchecked = side_effects.drop(core, inventory)
        core = core if unchecked is core else compat.programs.remove_dead_code(unchecked)
    return live, core, inventory


def _provenance_level(given: str | None) -> int:
    """How much each node says of where it comes from: 0 nothing, 1 the line and the primitive, 2 the stack, too."""
    levels = {"source": 1, "stack": 2}
    if given is None:
        text = os.environ.get(PROVENANCE_VARIABLE) or "0"
        if text not in ("0", "1", "2"):
            raise InputError(f"The environment variable {PROVENANCE_VARIABLE} is {text!r}; it must be 0, 1 or 2.")
        return int(text)
    check_choices(provenance=(given, (None, *levels)))
    return levels[given]


def _structure(program: Program, names: Names, baked: int, without_first: bool) -> dict[str, str]:
    """The structure of the inputs and outputs as metadata, with which `load` takes and gives pytrees.

    The first argument, with as many leaves as are `baked` in, may be no input. (It may have none at all.)
    """
    leaves = [*[""] * baked, *names.inputs]
    args, kwargs = jax.tree.unflatten(jax.tree.structure(program.inputs), leaves)
    inputs = (tuple(args[1:] if without_first else args), kwargs)
    outputs = jax.tree.unflatten(jax.tree.structure(program.outputs), names.outputs)
    return {INPUTS: json.dumps(describe(inputs)), OUTPUTS: json.dumps(describe(outputs))}


def _positions(
    which: Sequence[int | str] | None, names: Sequence[str], avals: Sequence[Any], argument: str
) -> list[int]:
    """Inputs or outputs given by position or name, as positions."""
    positions = []
    for item in which or ():
        if isinstance(item, str) and item in names:
            position = names.index(item)
        elif isinstance(item, int) and not isinstance(item, bool) and 0 <= item < len(names):
            position = item
        else:
            raise InputError(f"{argument} names {item!r}, but the model has {', '.join(names) or 'none'}.")
        if len(avals[position].shape) != 4:
            raise InputError(f"{argument} names {item!r}, which has the shape {avals[position].shape}, not four axes.")
        positions.append(position)
    return positions
