"""Execution traces in MLCommons' Chakra format: a header and nodes, each behind its length.

Source: mlcommons/chakra, schema/protobuf/et_def.proto (package ChakraProtoMsg) and
src/third_party/utils/protolib.py (varint lengths); the fields that are written here. The messages
are described at run time, and protobuf is loaded only then.
"""

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from planner.plans.execution import Node
from planner.report.plot import library

SCHEMA = "1.0.0"
"""Release of Chakra whose schema this is."""
PACKAGE = "ChakraProtoMsg"
TYPES = {"compute": 4, "send": 5, "receive": 6, "collective": 7}
"""NodeType: COMP_NODE, COMM_SEND_NODE, COMM_RECV_NODE, COMM_COLL_NODE."""
COLLECTIVES = {"all_reduce": 0, "all_gather": 2, "all_to_all": 6, "reduce_scatter": 7}
"""CollectiveCommType."""
# Field numbers and types of et_def.proto; "[]" marks repeated ones.
MESSAGES: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "AttributeProto": {
        "name": (1, "string"),
        "int64_val": (9, "int64"),
        "bool_val": (27, "bool"),
        "string_val": (29, "string"),
    },
    "GlobalMetadata": {"version": (1, "string"), "attr": (2, "AttributeProto[]")},
    "Node": {
        "id": (1, "uint64"),
        "name": (2, "string"),
        "type": (3, "int32"),
        "data_deps": (5, "uint64[]"),
        "start_time_micros": (6, "uint64"),
        "duration_micros": (7, "uint64"),
        "attr": (10, "AttributeProto[]"),
    },
}
ONE_OF = ("int64_val", "bool_val", "string_val")
"""Of AttributeProto: one of them is written, zero and false too."""
Value = bool | int | str


@cache
def message_classes() -> dict[str, Any]:
    """Classes of the messages above, from a description of them."""
    described = library("google.protobuf.descriptor_pb2", "--format", "trace")
    pool = library("google.protobuf.descriptor_pool", "--format", "trace").DescriptorPool()
    factory = library("google.protobuf.message_factory", "--format", "trace")
    field = described.FieldDescriptorProto
    file = described.FileDescriptorProto(name="et_def.proto", package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
        for key, (number, kind) in fields.items():
            base = kind.removesuffix("[]")
            label = field.LABEL_REPEATED if kind.endswith("[]") else field.LABEL_OPTIONAL
            one = message.field.add(name=key, number=number, label=label)
            if base in MESSAGES:
                one.type, one.type_name = field.TYPE_MESSAGE, f".{PACKAGE}.{base}"
            else:
                one.type = getattr(field, f"TYPE_{base.upper()}")
            if key in ONE_OF:
                one.oneof_index = 0
    pool.Add(file)
    return {
        name: factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in MESSAGES
    }


def _varint(number: int) -> bytes:
    """Base 128, least significant group first."""
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def _delimited(data: bytes) -> bytes:
    return _varint(len(data)) + data


Values = tuple[tuple[str, Value], ...]
"""Attributes of a node or a header, by name."""


@lru_cache(maxsize=1 << 14)
def _attributes(kind: str, values: Values) -> bytes:
    """A message of this kind with attributes alone: joined to another, it adds them to it."""
    classes = message_classes()
    kinds = {bool: "bool_val", int: "int64_val", str: "string_val"}
    attributes = [
        classes["AttributeProto"](name=name, **{kinds[type(value)]: value})
        for name, value in values
    ]
    data: bytes = classes[kind](attr=attributes).SerializeToString()
    return data


def header(about: Values) -> bytes:
    """What a trace starts with."""
    version: bytes = message_classes()["GlobalMetadata"](version=SCHEMA).SerializeToString()
    return _delimited(version + _attributes("GlobalMetadata", about))


def shared(node: Node) -> bytes:
    """What is the same of a node on every rank of its stage."""
    message = message_classes()["Node"](
        id=node.id,
        name=node.name,
        type=TYPES[node.kind],
        data_deps=node.after,
        start_time_micros=node.start_us,
        duration_micros=node.duration_us,
    )
    data: bytes = message.SerializeToString()
    return data


def on_rank(node: bytes, values: Values) -> bytes:
    """A shared node with the attributes that are a rank's own."""
    return _delimited(node + _attributes("Node", (("is_cpu_op", False), *values)))
