"""Numbers of AMQP 0-9-1, as they stand in frames."""

METHOD, HEADER, BODY = 1, 2, 3
"""Kinds of frame."""
FRAME_END = b"\xce"
FRAME_OVERHEAD = 8
"""Bytes of a frame around its payload."""

BASIC = 60
"""The class of all methods that concern a single message, which are:"""
PUBLISH, RETURN, DELIVER, ACK, NACK = 40, 50, 60, 80, 120

# Flags of a message's properties, in the order in which the values are encoded.
CONTENT_TYPE, CONTENT_ENCODING, HEADERS, DELIVERY_MODE = 1 << 15, 1 << 14, 1 << 13, 1 << 12
PRIORITY, CORRELATION_ID, REPLY_TO, EXPIRATION = 1 << 11, 1 << 10, 1 << 9, 1 << 8
MESSAGE_ID, TIMESTAMP, TYPE = 1 << 7, 1 << 6, 1 << 5
