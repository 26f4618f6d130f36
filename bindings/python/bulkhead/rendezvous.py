"""Publishing, waiting, and learning what becomes of it."""

import collections
import json
import time

from . import cuda, wire

_REASONS = {
    1: "invalid name: must be 1 to 63 letters, digits, '-', '_' or '.'",
    2: "the name is already published in this zone",
    3: "stale handle: its memory was freed, or the proxy was restarted",
    4: "the zone has too many publications or waiting clients",
    5: "the publisher died",
}

Entry = collections.namedtuple("Entry", "name zone nbytes consumers age note")


class TimedOut(TimeoutError):
    """Timed out."""


class Refused(RuntimeError):
    """Refused by the proxy; `code` says why."""

    def __init__(self, code):
        super().__init__(_REASONS.get(code, f"refused ({code})"))
        self.code = code


class Gone(RuntimeError):
    """The peer died or withdrew its publication."""


def _deadline(timeout):
    return None if timeout is None else time.monotonic() + timeout


def _strides_are_plain(interface):
    strides = interface.get("strides")
    if strides is None:
        return True
    step = int(interface["typestr"][2:])
    for extent, stride in zip(reversed(interface["shape"]), reversed(strides)):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


def _describe(buffer):
    """Address and bytes of a buffer, and what a consumer must know to see it as what it is."""
    if isinstance(buffer, tuple):
        return (*buffer, {})
    if hasattr(buffer, "data_ptr"):
        # PyTorch has types that the interface below does not know, such as bfloat16.
        if not (buffer.is_cuda and buffer.is_contiguous()):
            raise ValueError("the tensor must be contiguous and on a GPU; publish a copy")
        details = {"shape": list(buffer.shape), "dtype": str(buffer.dtype).split(".")[-1]}
        try:
            details["typestr"] = buffer.__cuda_array_interface__["typestr"]
        except (TypeError, KeyError):
            pass
        return buffer.data_ptr(), buffer.numel() * buffer.element_size(), details
    interface = buffer.__cuda_array_interface__
    if not _strides_are_plain(interface):
        raise ValueError("the buffer is not contiguous; publish a contiguous copy of it")
    nbytes = int(interface["typestr"][2:])
    for extent in interface["shape"]:
        nbytes *= extent
    return interface["data"][0], nbytes, {"shape": list(interface["shape"]), "typestr": interface["typestr"]}


class _Bytes:
    """A buffer as nothing but bytes; it keeps what it belongs to."""

    def __init__(self, shared):
        self._shared = shared
        data = (shared.address, False)
        self.__cuda_array_interface__ = {"shape": (shared.nbytes,), "typestr": "|u1", "data": data, "version": 3}


class _Side:
    """What producer and consumer have in common: a connection that says who is there."""

    def __init__(self, connection):
        self._connection = connection

    def fileno(self):
        """To be polled: readable when something has happened."""
        return self._connection.fileno()

    def _hear(self, timeout):
        message = self._connection.hear(_deadline(timeout))
        if message is not None and message.kind == wire.REFUSED:
            raise Refused(message.code)
        return message

    def _done(self):
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.say(wire.message(wire.DONE))
            except OSError:
                pass  # The proxy is gone, and so are the listeners.
            connection.close()

    def __enter__(self):
        return self


class Publication(_Side):
    """A buffer under a name, until it is closed."""

    def __init__(self, connection, name, keep):
        super().__init__(connection)
        self.name = name
        self._keep = keep  # The memory must not be freed while others may open it.

    def events(self, timeout=None):
        """What consumers do, as ("taken" | "finished" | "lost", number, zone), until nothing happens in time."""
        words = {wire.TAKEN: "taken", wire.FINISHED: "finished", wire.LOST: "lost"}
        while True:
            message = self._hear(timeout)
            if message is None:
                return
            if message.kind in words:
                yield words[message.kind], message.number, message.zone

    def wait_done(self, consumers=1, timeout=None):
        """Waits until so many consumers are done with it; raises Gone if one of them died, TimedOut if it takes too
        long."""
        deadline = _deadline(timeout)
        lost = 0
        while consumers > 0:
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            message = self._hear(left)
            if message is None:
                raise TimedOut(f"timed out waiting for consumers of {self.name!r}")
            if message.kind in (wire.FINISHED, wire.LOST):
                consumers -= 1
                lost += message.kind == wire.LOST
        if lost:
            raise Gone(f"{lost} consumer(s) of {self.name!r} died")

    def close(self):
        """Withdraws it: those who have it keep it, and learn that it is withdrawn."""
        self._done()
        self._keep = None

    def __exit__(self, kind, value, traceback):
        self.close()


class Shared(_Side):
    """A published buffer, mapped into this process. Give it to `torch.as_tensor`, `cupy.asarray` and the like."""

    def __init__(self, connection, found):
        super().__init__(connection)
        self.name, self.zone, self.nbytes = found.name, found.zone, found.bytes
        details = json.loads(found.note) if found.note.startswith(b"{") else {}
        self.note = details.get("note")
        self._typestr = details.get("typestr")
        self.dtype = details.get("dtype")
        self.shape = tuple(details["shape"]) if "shape" in details else (self.nbytes,)
        self._base = 0
        if found.memory.strip(b"\0"):
            cuda.ensure_context()
            self._base = cuda.open_handle(found.memory)
        self.address = self._base + found.offset if self._base else 0

    @property
    def __cuda_array_interface__(self):
        if not self.address:
            raise AttributeError("no memory is mapped")
        # A type that has no name here is shown as the bytes that it is.
        shape, typestr = (self.shape, self._typestr) if self._typestr else ((self.nbytes,), "|u1")
        return {"shape": shape, "typestr": typestr, "data": (self.address, False), "version": 3}

    def torch(self):
        """As a tensor of PyTorch, of the type and shape that were published. It is of no use once this is closed."""
        import torch

        tensor = torch.as_tensor(_Bytes(self), device="cuda")
        return tensor.view(getattr(torch, self.dtype)).reshape(self.shape) if self.dtype else tensor

    def tobytes(self):
        return cuda.read(self.address, self.nbytes)

    def publisher_is_gone(self, timeout=0):
        """Has the publisher withdrawn it, or died? What is mapped stays."""
        message = self._hear(timeout)
        return message is not None and message.kind == wire.GONE

    def close(self):
        """Unmaps it, and tells the publisher that this process is done with it."""
        if self._base:
            base, self._base, self.address = self._base, 0, 0
            cuda.close_handle(base)
        self._done()

    def abandon(self):
        """As if this process had died: the publisher learns that it is not done."""
        if self._base:
            base, self._base, self.address = self._base, 0, 0
            cuda.close_handle(base)
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __exit__(self, kind, value, traceback):
        # Work that failed is not done.
        self.close() if kind is None else self.abandon()


def publish(name, buffer=None, *, note=None, socket=None):
    """Publishes a buffer: anything with `__cuda_array_interface__`, a pair of address and bytes, or None for a name alone.

    All work of the current context is waited for first. `note` is anything that JSON can hold.
    """
    details, memory, offset, nbytes = {"note": note}, b"", 0, 0
    if buffer is not None:
        address, nbytes, known = _describe(buffer)
        details.update(known)
        cuda.ensure_context()
        cuda.synchronize()
        memory, offset = cuda.export(address)
    data = wire.message(
        wire.PUBLISH, name=name, bytes=nbytes, offset=offset, memory=memory, note=json.dumps(details).encode()
    )
    connection = wire.Connection(socket)
    connection.say(data)
    answer = connection.hear(_deadline(10))
    if answer is None or answer.kind != wire.PUBLISHED:
        connection.close()
        raise Refused(answer.code) if answer is not None else TimedOut("timed out waiting for the proxy")
    return Publication(connection, name, buffer)


def wait(name, timeout=None, *, socket=None):
    """Waits until NAME, or ZONE/NAME, is published, and opens it."""
    zone, plain = wire.split(name)
    connection = wire.Connection(socket)
    try:
        connection.say(wire.message(wire.WAIT, name=plain, zone=zone))
        found = connection.hear(_deadline(timeout))
        if found is None:
            raise TimedOut(f"timed out waiting for {name!r}")
        if found.kind != wire.FOUND:
            raise Refused(found.code)
        return Shared(connection, found)
    except BaseException:
        connection.close()
        raise


def listing(socket=None):
    """What this zone may wait for, as far as it is published now."""
    entries = []
    while True:
        known = len(entries)
        total = _page(entries, socket)
        if len(entries) in (known, total):
            return entries


def _page(entries, socket):
    """Adds the entries that follow those that are known; answers how many there are in all."""
    connection = wire.Connection(socket)
    try:
        connection.say(wire.message(wire.LIST, number=len(entries)))
        while True:
            message = connection.hear(_deadline(10))
            if message is None or message.kind != wire.ENTRY:
                return message.number if message is not None and message.kind == wire.END else len(entries)
            note = json.loads(message.note).get("note") if message.note.startswith(b"{") else None
            entries.append(Entry(message.name, message.zone, message.bytes, message.number, message.age / 1000, note))
    finally:
        connection.close()
