"""The contract of the exchange, rendered from the registry: JSON Schemas and AsyncAPI 3.

For programs that publish to `jobs.topic` themselves, in whatever language.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from switchyard.broker.lanes import JOBS_EXCHANGE, lane_named
from switchyard.broker.message import JobMessage
from switchyard.services.engine.jobs.registry import JobType, Registry

JSON_SCHEMA = "https://json-schema.org/draft/2020-12/schema"


def payload_schema(job_type: JobType) -> dict[str, Any]:
    """Return the JSON Schema of a job type's payload."""
    return {"$schema": JSON_SCHEMA, **job_type.payload_model.model_json_schema()}


def message_schema(job_type: JobType, envelope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a whole message of that type; `envelope` is that of JobMessage."""
    payload = job_type.payload_model.model_json_schema()
    # Both have definitions of their own; they stand side by side at the top.
    definitions = {**envelope.get("$defs", {}), **payload.pop("$defs", {})}
    own = {"payload": payload, "job_type": {"const": job_type.name}}
    properties = {**envelope["properties"], **own}
    return {"$schema": JSON_SCHEMA, **envelope, "properties": properties, "$defs": definitions}


def asyncapi(registry: Registry) -> dict[str, Any]:
    """Return the AsyncAPI 3 document of the jobs exchange. Takes a tenth of a second: call it in a
    thread."""
    envelope = JobMessage.model_json_schema()
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    messages = {
        job_type.name: _message(job_type, envelope) for job_type in registry.publishable_types
    }
    for route in registry.routes:
        lane = lane_named(route.lane)
        name = f"{route.lane}_{route.job_type}"
        channels[name] = {
            "address": route.routing_key,
            "description": f"Worked by `{route.worker}` from the queue `{route.queue}`. Default "
            f"priority {lane.default_priority}; waits at most {lane.ttl_seconds} s; at most "
            f"{lane.max_length} jobs wait.",
            "messages": {route.job_type: {"$ref": f"#/components/messages/{route.job_type}"}},
            "bindings": {
                "amqp": {
                    "is": "routingKey",
                    "exchange": {"name": JOBS_EXCHANGE, "type": "topic", "durable": True},
                    "bindingVersion": "0.3.0",
                }
            },
        }
        operations[f"publish_{name}"] = {
            # The document is the system's: it receives what others publish.
            "action": "receive",
            "channel": {"$ref": f"#/channels/{name}"},
            "messages": [{"$ref": f"#/channels/{name}/messages/{route.job_type}"}],
            "bindings": {
                "amqp": {
                    "deliveryMode": 2,
                    "mandatory": True,
                    "priority": lane.default_priority,
                    "bindingVersion": "0.3.0",
                }
            },
        }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Switchyard jobs",
            "version": version("switchyard"),
            "description": "Publish persistent JSON with `message_id` = `job_id`, with publisher "
            "confirms and `mandatory`.",
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages},
    }


def _message(job_type: JobType, envelope: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": job_type.name,
        "contentType": "application/json",
        "payload": {
            "schemaFormat": "application/schema+json;version=draft-2020-12",
            "schema": _root_references(
                message_schema(job_type, envelope), f"#/components/messages/{job_type.name}"
            ),
        },
    }


def _root_references(schema: Any, at: str) -> Any:
    """Return the schema with its references pointing to where it stands in the document."""
    if isinstance(schema, dict):
        return {
            key: f"{at}/payload/schema{value[1:]}"
            if key == "$ref" and isinstance(value, str) and value.startswith("#/")
            else _root_references(value, at)
            for key, value in schema.items()
        }
    if isinstance(schema, list):
        return [_root_references(each, at) for each in schema]
    return schema
