"""A model's protobuf message as pieces: literal bytes and, between them, weights that stay in their own buffers.

`onnx_ir` builds the message without the large weights; this module writes the few length prefixes around them by hand
(protobuf's wire format: a tag, a length, the content). The pieces, one after the other, are the same bytes as
`ModelProto.SerializeToString(deterministic=True)` gives, without two copies of the model in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import onnx
import onnx_ir as ir
from google.protobuf.message import Message

INLINE_BYTES = 1024
"""Tensors up to this size always stay in the message: shape inference and constant folding read them."""

Piece: TypeAlias = bytes | ir.TensorProtocol


def skeleton(model: ir.Model) -> tuple[onnx.ModelProto, dict[int, ir.TensorProtocol]]:
    """The model's message without the bytes of its large weights, and those weights by initializer position."""
    weights: dict[int, ir.TensorProtocol] = {}
    stand_ins: list[ir.Value] = []
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None:
            raise ValueError(f"The initializer {value.name!r} has no value.")
        if tensor.nbytes > INLINE_BYTES and tensor.dtype != ir.DataType.STRING:
            weights[len(stand_ins)] = tensor
            tensor = _without_data(tensor, value.name or "")
        stand_ins.append(
            ir.Value(
                name=value.name,
                shape=value.shape,
                type=value.type,
                doc_string=value.doc_string,
                const_value=tensor,
                metadata_props=dict(value.metadata_props),
            )
        )
    graph = model.graph
    view = ir.GraphView(
        graph.inputs,
        graph.outputs,
        nodes=graph,
        initializers=stand_ins,
        doc_string=graph.doc_string,
        opset_imports=graph.opset_imports,
        name=graph.name,
        metadata_props=graph.metadata_props,
    )
    shell = ir.Model(
        view,  # type: ignore[arg-type]  # documented to be accepted
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=tuple(model.functions.values()),
        metadata_props=model.metadata_props,
    )
    proto = ir.to_proto(shell)
    for position in weights:
        proto.graph.initializer[position].ClearField("external_data")
        proto.graph.initializer[position].ClearField("data_location")
    return proto, weights


def _without_data(tensor: ir.TensorProtocol, name: str) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        "",
        0,
        0,
        tensor.dtype,
        shape=tensor.shape,  # type: ignore[arg-type]
        name=name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )


def size(pieces: Sequence[Piece]) -> int:
    return sum(len(piece) if isinstance(piece, bytes) else piece.nbytes for piece in pieces)


def model_pieces(proto: onnx.ModelProto, weights: dict[int, ir.TensorProtocol]) -> list[Piece]:
    """The serialized `proto`, with `weights` as the raw data of the initializers at their positions."""
    initializers: list[Piece] = []
    for position, message in enumerate(proto.graph.initializer):
        header = _bytes(message)
        parts: list[Piece] = [header]
        if position in weights:
            before, after = _split(header, onnx.TensorProto.RAW_DATA_FIELD_NUMBER)
            raw = _field(onnx.TensorProto.RAW_DATA_FIELD_NUMBER, [weights[position]])
            parts = [before, *raw, after]
        initializers += _field(onnx.GraphProto.INITIALIZER_FIELD_NUMBER, parts)
    graph, model = onnx.GraphProto(), onnx.ModelProto()
    graph.CopyFrom(proto.graph)
    graph.ClearField("initializer")
    before, after = _split(_bytes(graph), onnx.GraphProto.INITIALIZER_FIELD_NUMBER)
    graph_pieces = _field(onnx.ModelProto.GRAPH_FIELD_NUMBER, [before, *initializers, after])
    model.CopyFrom(proto)
    model.ClearField("graph")
    before, after = _split(_bytes(model), onnx.ModelProto.GRAPH_FIELD_NUMBER)
    return [before, *graph_pieces, after]


def _bytes(message: Message) -> bytes:
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def _field(number: int, content: Sequence[Piece]) -> list[Piece]:
    """`content` as a length-delimited field of the protobuf wire format."""
    return [_varint(number << 3 | 2) + _varint(size(content)), *content]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _split(data: bytes, number: int) -> tuple[bytes, bytes]:
    """Cut a serialized message, whose fields come in order of their numbers, where field `number` belongs."""

    def read_varint(at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = data[at]
            value |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                return value, at

    at = 0
    while at < len(data):
        tag, after = read_varint(at)
        if tag >> 3 >= number:
            break
        match tag & 7:
            case 0:
                _, at = read_varint(after)
            case 1:
                at = after + 8
            case 2:
                length, after = read_varint(after)
                at = after + length
            case 5:
                at = after + 4
            case wire_type:
                raise AssertionError(f"unexpected wire type {wire_type}")
    return data[:at], data[at:]
