"""Messages and tools as values for Go templates: Ollama's types, with their fields and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from specd.core import Message, ToolCall
from specd.go_template import Struct
from specd.go_template.json_text import JsonList, JsonMap, JsonStruct

_TYPESCRIPT: Final = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "array": "any[]",
    "object": "Record<string, any>",
    "null": "null",
}
#: The keys of a property that Ollama knows, in the order of its JSON.
_PROPERTY: Final = ("anyOf", "type", "items", "description", "enum", "properties", "required")
_PARAMETERS: Final = ("type", "$defs", "items", "required", "properties")


class PropertyType(list[object]):
    """Types of a property.  One type prints as its name, several as a list."""

    type_name = "api.PropertyType"

    def go_string(self) -> str:
        names = " ".join(map(str, self))
        return names if len(self) < 2 else f"[{names}]"


def go_messages(messages: Sequence[Message]) -> list[object]:
    return [_message(message) for message in messages]


def go_tools(tools: Sequence[Mapping[str, object]]) -> JsonList:
    """Return the tools as template values.

    Their JSON has the keys that Ollama knows first, then the others, which Ollama drops.
    Properties are sorted by name.
    """
    return JsonList(_tool(tool) for tool in tools)


def _message(message: Message) -> Struct:
    fields: dict[str, object] = {
        "Role": message.role,
        "Content": message.content,
        "Thinking": message.thinking,
        # The images' markers are in the content; a template only checks whether there are images.
        "Images": [""] * len(message.images),
        "ToolCalls": [_call(call) for call in message.tool_calls],
        "ToolName": message.tool_name,
        "ToolCallID": message.tool_call_id,
    }
    return Struct("template.templateMessage", fields)


def _call(call: ToolCall) -> Struct:
    function = {
        "Index": call.index,
        "Name": call.name,
        "Arguments": JsonMap(call.arguments),
    }
    fields = {"ID": call.id, "Function": Struct("template.templateToolCallFunction", function)}
    return Struct("template.templateToolCall", fields)


def _tool(tool: Mapping[str, object]) -> JsonStruct:
    function = _mapping(tool.get("function"))
    name, description = _text(function.get("name")), _text(function.get("description"))
    parameters = _parameters(_mapping(function.get("parameters")))
    known = {"name": name, "description": description, "parameters": parameters}
    inner = JsonStruct(
        "template.templateToolFunction",
        {"Name": name, "Description": description, "Parameters": parameters},
        json={**known, **_unknown_keys(function, tuple(known))},
    )
    kind, items = _text(tool.get("type")), tool.get("items")
    listed = {} if items is None else {"items": items}
    return JsonStruct(
        "template.templateTool",
        {"Type": kind, "Items": items, "Function": inner},
        json={"type": kind, **listed, "function": inner}
        | _unknown_keys(tool, ("type", "items", "function")),
    )


def _parameters(schema: Mapping[str, object]) -> JsonStruct:
    kind, properties = _text(schema.get("type")), _properties(schema.get("properties"))
    optional = {key: schema[key] for key in ("$defs", "items", "required") if schema.get(key)}
    return JsonStruct(
        "template.templateToolFunctionParameters",
        {
            "Type": kind,
            "Defs": schema.get("$defs"),
            "Items": schema.get("items"),
            "Required": _list(schema.get("required")),
            "Properties": JsonMap() if properties is None else properties,
        },
        json={"type": kind, **optional, "properties": properties}
        | _unknown_keys(schema, _PARAMETERS),
    )


def _properties(schemas: object) -> JsonMap | None:
    if not isinstance(schemas, Mapping):
        return None
    return JsonMap({str(name): _property(_mapping(schema)) for name, schema in schemas.items()})


def _property(schema: Mapping[str, object]) -> JsonStruct:
    any_of = [_property(_mapping(part)) for part in _list(schema.get("anyOf"))]
    kinds, properties = _property_type(schema.get("type")), _properties(schema.get("properties"))
    json = {
        "anyOf": any_of,
        "type": kinds[0] if len(kinds) == 1 else kinds,
        "items": schema.get("items"),
        "description": _text(schema.get("description")),
        "enum": _list(schema.get("enum")),
        "properties": properties,
        "required": _list(schema.get("required")),
    }
    fields = {
        "AnyOf": any_of,
        "Type": kinds,
        "Items": json["items"],
        "Description": json["description"],
        "Enum": json["enum"],
        "Properties": properties,
        "Required": json["required"],
    }
    present = {key: value for key, value in json.items() if value not in (None, "", [])}
    return JsonStruct(
        "api.ToolProperty",
        fields,
        json=present | _unknown_keys(schema, _PROPERTY),
        methods={"ToTypeScriptType": lambda: _typescript(schema)},
    )


def _typescript(schema: Mapping[str, object]) -> str:
    if any_of := _list(schema.get("anyOf")):
        return " | ".join(_typescript(_mapping(part)) for part in any_of)
    kinds = _property_type(schema.get("type"))
    return " | ".join(_TYPESCRIPT.get(str(kind), "any") for kind in kinds) or "any"


def _property_type(kind: object) -> PropertyType:
    return PropertyType([kind] if isinstance(kind, str) else _list(kind))


def _unknown_keys(schema: Mapping[str, object], known: tuple[str, ...]) -> dict[str, object]:
    return {key: value for key, value in schema.items() if key not in known}


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
