"""Read XML of foreign servers: entities, which could expand or name other files, are refused."""

from __future__ import annotations

from xml.etree import ElementTree as ET
from xml.parsers import expat

from switchyard.services.common.files.charsets import Charset, charset_in, decode
from switchyard.services.common.printable import quoted_answer
from switchyard.services.pipeline.sources.source_errors import InvalidSourceResponse

_MAX_DEPTH = 50
MAX_ELEMENTS = 1_000_000
"""Ten times the elements of the longest list of references. 20 MB of `<a/>` would be
5,000,000 elements, and are refused."""


def xml_tree(data: bytes, label: str, charset: Charset | None = None) -> ET.Element:
    """Return the root element of an answer. Parsing takes time and memory in proportion to the
    data, up to some seconds: in an event loop, call it in a thread. A DOCTYPE is refused, so that
    there are no entities. `label` names the server in errors. `charset` is the one that the server
    names: it takes precedence over the XML declaration, but not over a byte order mark.

    Raises InvalidSourceResponse.
    """
    builder = ET.TreeBuilder()
    parser = expat.ParserCreate("utf-8", namespace_separator="}")
    parser.buffer_text = True
    depth = element_count = 0

    def qualified_name(text: str) -> str:
        # Expat gives `namespace}tag`, and ElementTree has `{namespace}tag`.
        return f"{{{text}" if "}" in text else text

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth, element_count
        depth += 1
        element_count += 1
        if depth > _MAX_DEPTH:
            raise InvalidSourceResponse(f"{label}'s answer is nested too deeply")
        if element_count > MAX_ELEMENTS:
            raise InvalidSourceResponse(f"{label}'s answer has more than {MAX_ELEMENTS:,} elements")
        tree_attributes = {qualified_name(key): value for key, value in attributes.items()}
        builder.start(qualified_name(tag), tree_attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(qualified_name(tag))

    def doctype(*_: object) -> None:
        raise InvalidSourceResponse(f"{label}'s answer has a DOCTYPE, and needs none")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(decode(data, charset or charset_in(data)).encode(), True)
        return builder.close()
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise InvalidSourceResponse(
            f"{label} returned no XML ({error}), but {quoted_answer(data)}"
        ) from error
