"""Measure which operators ONNX Runtime's CPU provider runs with which dtypes, and write the target's table.

    python scripts/measure_kernels.py            # rewrites jax2onnx/targets/onnxruntime_cpu.json
    python scripts/measure_kernels.py --check    # exit code 1 if the table is not what this runtime does

The runtime's list of registered kernels is not the whole truth: some do not load, and an operator without a kernel may
load because the runtime inlines its function body. So each operator, version and combination of dtypes is tried by
loading a model of that one node; nodes with subgraphs cannot be tried alone, for them the list is taken. A node that
loads without a kernel counts only where that is as good: not for float16 (the runtime computes in float32 and forgets
to round between nodes, see FACTS.md), and not where the function body overflows or cancels (Softplus, Elu).
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import defs, helper
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

TABLE = Path(__file__).parent.parent / "jax2onnx" / "targets" / "onnxruntime_cpu.json"
OPSETS = range(17, 27)
DTYPES = {f"tensor({t.name.lower()})": t.short_name() for t in ir.DataType if t and t.short_name()[0] not in "sc"}
COMMON = ["f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "b8"]
ORDER = [*COMMON, *sorted(set(DTYPES.values()) - set(COMMON))]

# Operators on strings, sequences, images, quantized or random numbers never come out of a JAX program.
NOT_OURS = """
    Bernoulli BlackmanWindow ConcatFromSequence Constant ConvInteger DeformConv DequantizeLinear DynamicQuantizeLinear
    HammingWindow HannWindow ImageDecoder MatMulInteger MaxRoiPool MelWeightMatrix Multinomial NegativeLogLikelihoodLoss
    NonMaxSuppression Optional OptionalGetElement OptionalHasElement QLinearConv QLinearMatMul QuantizeLinear
    RandomNormal RandomNormalLike RandomUniform RandomUniformLike RegexFullMatch RoiAlign SequenceAt SequenceConstruct
    SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap SoftmaxCrossEntropyLoss SplitToSequence
    StringConcat StringNormalizer StringSplit TfIdfVectorizer
"""
GOOD_BODIES = {"AffineGrid", "Attention", "CastLike", "CenterCropPad", "GroupNormalization", "HardSwish",
               "MeanVarianceNormalization", "Mish", "RotaryEmbedding", "Swish"}  # fmt: skip
WITH_SUBGRAPHS = {"If", "Loop", "Scan"}
REQUIRED_ATTRIBUTES: dict[str, dict[str, Any]] = {
    **{op: {"kernel_shape": [2]} for op in ("AveragePool", "LpPool", "MaxPool", "MaxUnpool")},
    **{op: {"hidden_size": 2} for op in ("GRU", "LSTM", "RNN")},
    **{op: {"blocksize": 2} for op in ("DepthToSpace", "SpaceToDepth")},
    "BitShift": {"direction": "LEFT"},
    "Concat": {"axis": 0},
    "Einsum": {"equation": "ij,jk->ik"},
    "GroupNormalization": {"num_groups": 2},
    "LRN": {"size": 3},
    "Mod": {"fmod": 1},
}
# The inputs to give where not all of them can be given together.
GIVEN_INPUTS = {"Resize": "X scales", "Attention": "Q K V attn_mask", "RotaryEmbedding": "X cos_cache sin_cache"}
RESULT_DTYPE_ATTRIBUTE = {"Cast": "to", "BitCast": "to", "EyeLike": "dtype"}

Types = dict[str, str]  # one dtype per type variable of an operator
Kernel = dict[str, frozenset[str]]  # the dtypes that each type variable may have, in any combination


def registered_kernels() -> dict[str, list[tuple[int, int, Kernel]]]:
    """The CPU kernels that the runtime lists: operator -> [(first version, last version, types)]."""
    kernels: dict[str, list[tuple[int, int, Kernel]]] = {}
    for k in runtime.get_all_opkernel_def():
        if k.domain == "" and k.provider == "CPUExecutionProvider":
            types = {v: frozenset(DTYPES[t] for t in names if t in DTYPES) for v, names in k.type_constraints.items()}
            kernels.setdefault(k.op_name, []).append((*k.version_range, types))
    return kernels


def serving(kernels: Iterable[tuple[int, int, Kernel]], version: int) -> list[Kernel]:
    """Those kernels that the runtime takes for an operator last changed in `version`."""
    newest = 2**31 - 1
    return [types for first, last, types in kernels if first == version or (last < newest and first <= version <= last)]


def choices(schema: defs.OpSchema) -> Iterator[Types]:
    """Every choice of dtypes for the type variables of an operator."""
    variables = [c.type_param_str for c in schema.type_constraints]
    allowed = [[DTYPES[t] for t in c.allowed_type_strs if t in DTYPES] for c in schema.type_constraints]
    for choice in itertools.product(*allowed):
        yield dict(zip(variables, choice, strict=True))


def one_node_model(schema: defs.OpSchema, opset: int, types: Types) -> onnx.ModelProto:
    """A model of just this node, its inputs of unknown shape."""
    elem = {formal: ir.DataType.from_short_name(short).value for formal, short in {**DTYPES, **types}.items()}
    given = GIVEN_INPUTS.get(schema.name, "").split() or [i.name for i in schema.inputs]
    names = [i.name if i.name in given else "" for i in schema.inputs]
    while names and not names[-1]:
        names.pop()
    inputs = [helper.make_tensor_value_info(i.name, elem[i.type_str], None) for i in schema.inputs if i.name in given]
    attributes = dict(REQUIRED_ATTRIBUTES.get(schema.name, {}))
    if schema.name in RESULT_DTYPE_ATTRIBUTE:
        attributes[RESULT_DTYPE_ATTRIBUTE[schema.name]] = elem["T2"]
    if schema.name == "ConstantOfShape":
        size = max(1, ir.DataType(elem["T2"]).bitwidth // 8)
        attributes["value"] = onnx.TensorProto(dims=[1], data_type=elem["T2"], raw_data=bytes(size))
    node = helper.make_node(
        schema.name, names, [f"{o.name}_out" for o in schema.outputs[: schema.min_output]], **attributes
    )
    imports = [helper.make_opsetid("", opset)]
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=o) for o in node.output])
    return helper.make_model(graph, opset_imports=imports, ir_version=helper.find_min_ir_version_for(imports))


def loads(model: onnx.ModelProto) -> bool:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except (runtime.NotImplemented, runtime.InvalidGraph, runtime.Fail):
        return False
    return True


def merged(supported: list[Types]) -> list[Kernel]:
    """The same set of choices as few products of sets of dtypes."""
    kernels = [{variable: frozenset([dtype]) for variable, dtype in types.items()} for types in supported]
    for variable in supported[0] if supported else ():
        by_rest: dict[tuple, Kernel] = {}
        for kernel in kernels:
            rest = tuple(types for other, types in kernel.items() if other != variable)
            known = by_rest.setdefault(rest, {**kernel, variable: frozenset()})
            known[variable] |= kernel[variable]
        kernels = list(by_rest.values())
    return kernels


def measure(name: str, opset: int, kernels: list[Kernel]) -> list[Kernel]:
    """What the runtime can do for one version of an operator."""
    schema = defs.get_schema(name, opset)
    if name in WITH_SUBGRAPHS:
        return kernels
    supported = []
    for types in choices(schema):
        registered = any(all(types[v] in dtypes for v, dtypes in kernel.items() if v in types) for kernel in kernels)
        if not registered and (name not in GOOD_BODIES or "f16" in types.values()):
            continue
        if loads(one_node_model(schema, opset, types)):
            supported.append(types)
    return merged(supported)


def signature(schema: defs.OpSchema) -> str:
    """The type variable of each operand and of each result; "-" where a type is fixed, or free for each alone."""
    variables = {c.type_param_str for c in schema.type_constraints}
    sides = [[f.type_str if f.type_str in variables else "-" for f in side] for side in (schema.inputs, schema.outputs)]
    return " > ".join(map(" ".join, sides)).strip()


def table() -> dict[str, Any]:
    """operator -> first opset -> signature and kernels, each a dtype list per type variable.

    A kernel serves a version of an operator; whether a function body can be inlined may change with any opset.
    """
    registered = registered_kernels()
    ops: dict[str, Any] = {}
    for name in sorted({s.name for s in defs.get_all_schemas() if s.domain == ""} - set(NOT_OURS.split())):
        newest: Any = None
        tried = set()
        for opset in OPSETS:
            if not defs.has(name, opset) or (schema := defs.get_schema(name, opset)).deprecated:
                continue
            version = schema.since_version
            if version in tried and name not in GOOD_BODIES:
                continue
            kernels = [
                {variable: " ".join(sorted(types, key=ORDER.index)) for variable, types in kernel.items()}
                for kernel in measure(name, opset, serving(registered.get(name, []), version))
            ]
            if version not in tried or kernels != newest:
                ops.setdefault(name, {})[str(opset if version in tried else version)] = [signature(schema), *kernels]
            newest = kernels
            tried.add(version)
    return {
        "runtime": f"onnxruntime {ort.__version__} CPUExecutionProvider",
        "opsets": [OPSETS[0], OPSETS[-1]],
        "ops": ops,
    }


def formatted(data: dict[str, Any]) -> str:
    """JSON with one line per operator version."""
    lines = [f'"runtime": {json.dumps(data["runtime"])},', f'"opsets": {json.dumps(data["opsets"])},', '"ops": {']
    for name, versions in data["ops"].items():
        rows = [f'  "{version}": {json.dumps(kernels)}' for version, kernels in versions.items()]
        lines.append(f' "{name}": {{\n' + ",\n".join(rows) + "}" + ("," if name != list(data["ops"])[-1] else ""))
    return "{\n" + "\n".join(lines) + "}}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed table instead of writing it")
    arguments = parser.parse_args()
    text = formatted(table())
    if arguments.check:
        same = TABLE.read_text() == text
        print("the table is up to date" if same else "the table differs from what this runtime does")
        return 0 if same else 1
    TABLE.write_text(text)
    print(f"wrote {TABLE.name}: {len(text)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
