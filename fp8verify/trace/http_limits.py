"""Limits for servers that a URL names: how long an answer may take, and how large a page may be."""

from __future__ import annotations

from typing import Any

from aiohttp import ClientPayloadError, ClientResponse, ClientTimeout

# Listings and blocks of files, which are read at once; files themselves are read in blocks.
MAX_BODY = 64 << 20
_SILENCE_S = 60


class BoundedResponse(ClientResponse):
    """A response whose body is bounded where it is read as a whole."""

    async def read(self) -> bytes:
        """Return the body.

        Raises:
            ClientPayloadError: it is too large.
        """
        if self._body is None:
            found = bytearray()
            async for piece in self.content.iter_chunked(1 << 16):
                found += piece
                if len(found) > MAX_BODY:
                    self.close()
                    raise ClientPayloadError(f"an answer of more than {MAX_BODY >> 20} MB")
            self._body = bytes(found)
        return self._body


def client_options(seconds: float) -> dict[str, Any]:
    """Return the arguments of a client session whose answers take no longer than `seconds`."""
    silence = min(_SILENCE_S, seconds)
    timeout = ClientTimeout(total=seconds, sock_connect=silence, sock_read=silence)
    return {"response_class": BoundedResponse, "timeout": timeout}
