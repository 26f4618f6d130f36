"""The messages that programs and the proxy exchange: one size, both ways. They are described in
crates/control/src/rendezvous.rs."""

import collections
import os
import socket
import struct
import time

PUBLISH, WAIT, DONE, LIST = 1, 2, 3, 4
PUBLISHED, FOUND, GONE, TAKEN, FINISHED, LOST, ENTRY, END, REFUSED = range(101, 110)

_LAYOUT = struct.Struct("<II5Q64s64s64s64sQ712s")
assert _LAYOUT.size == 1024
NOTE = 712
# "BkMt", version 1, six reserved words.
_OPENING = struct.pack("<4sI6Q", b"BkMt", 1, 0, 0, 0, 0, 0, 0)

Message = collections.namedtuple("Message", "kind code number bytes offset age name zone memory event note")


def message(kind, name="", zone="", bytes=0, offset=0, memory=b"", event=b"", note=b"", number=0):
    names = [text.encode("ascii", "replace") for text in (name, zone)]
    if any(len(text) > 63 for text in names):
        raise ValueError("a name has at most 63 characters")
    if len(note) > NOTE:
        raise ValueError(f"a note has at most {NOTE} bytes")
    return _LAYOUT.pack(kind, 0, number, bytes, offset, 0, 0, *names, memory, event, len(note), note)


def split(name):
    """NAME or ZONE/NAME, as zone and name."""
    zone, slash, rest = name.partition("/")
    return (zone, rest) if slash else ("", name)


class Connection:
    """A program's end of a connection to the proxy."""

    def __init__(self, path=None):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._connect(path or os.environ.get("BULKHEAD_SOCKET"))
            self._socket.send(_OPENING)
        except OSError:
            self._socket.close()
            raise

    def _connect(self, path):
        if path:
            return self._socket.connect(path)
        try:
            self._socket.connect("/run/bulkhead/zone/sock")
        except FileNotFoundError:
            # In a Xen guest the zone's socket is in another domain, and this one leads to it.
            self._socket.connect("/run/bulkhead/zone/names")

    def fileno(self):
        return self._socket.fileno()

    def close(self):
        self._socket.close()

    def say(self, data):
        self._socket.send(data)

    def hear(self, deadline=None):
        """The next message; None when there is none in time; ConnectionError when the proxy is gone."""
        if deadline is None:
            self._socket.settimeout(None)
        else:
            # 0 would mean something else: not to wait, and to say so by another exception.
            self._socket.settimeout(max(deadline - time.monotonic(), 1e-6))
        try:
            data = self._socket.recv(_LAYOUT.size + 1)
        except socket.timeout:
            return None
        if len(data) != _LAYOUT.size:
            raise ConnectionError("connection closed by the proxy" if not data else "unexpected message from the proxy; is it a different version?")
        kind, code, number, size, offset, age, _, name, zone, memory, event, length, note = _LAYOUT.unpack(data)
        text = [field.split(b"\0", 1)[0].decode("ascii", "replace") for field in (name, zone)]
        return Message(kind, code, number, size, offset, age, *text, memory, event, note[: min(length, NOTE)])
