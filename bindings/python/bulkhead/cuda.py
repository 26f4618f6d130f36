"""The few calls of the CUDA driver API that sharing needs, by ctypes."""

import ctypes
import functools

_Pointer = ctypes.c_uint64


class CudaError(RuntimeError):
    """A call of the CUDA driver failed; `code` says how."""

    def __init__(self, call, code, name):
        super().__init__(f"{call} answers {code} ({name})")
        self.code = code


class _Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


@functools.lru_cache(maxsize=None)
def _library():
    return ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    """Calls a function of the driver; raises where it fails."""
    library = _library()
    code = getattr(library, name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        library.cuGetErrorName(code, ctypes.byref(text))
        raise CudaError(name, code, (text.value or b"unknown").decode())


def ensure_context():
    """Makes the first device's context current, unless the program has one."""
    current = ctypes.c_void_p()
    if _library().cuCtxGetCurrent(ctypes.byref(current)) == 0 and current.value:
        return
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(current), 0)
    call("cuCtxSetCurrent", current)


def synchronize():
    call("cuCtxSynchronize")


def export(address):
    """The handle of the allocation that an address lies in, and how far into it that is."""
    base, handle = _Pointer(), _Handle()
    call("cuMemGetAddressRange_v2", ctypes.byref(base), None, _Pointer(address))
    call("cuIpcGetMemHandle", ctypes.byref(handle), base)
    return bytes(handle.bytes), address - base.value


def open_handle(handle):
    address, by_value = _Pointer(), _Handle()
    by_value.bytes[:] = handle
    # 1: peer access is enabled when it is needed.
    call("cuIpcOpenMemHandle_v2", ctypes.byref(address), by_value, 1)
    return address.value


def close_handle(address):
    call("cuIpcCloseMemHandle", _Pointer(address))


class DeviceBuffer:
    """Device memory of its own, for programs that have no framework."""

    def __init__(self, nbytes):
        ensure_context()
        pointer = _Pointer()
        call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(nbytes))
        self.address, self.nbytes = pointer.value, nbytes

    @classmethod
    def of(cls, data):
        """Memory that holds these bytes."""
        buffer = cls(len(data))
        write(buffer.address, data)
        return buffer

    @property
    def __cuda_array_interface__(self):
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, False), "version": 3}

    def tobytes(self):
        return read(self.address, self.nbytes)

    def free(self):
        if self.address:
            call("cuMemFree_v2", _Pointer(self.address))
            self.address = 0


def write(address, data):
    call("cuMemcpyHtoD_v2", _Pointer(address), bytes(data), ctypes.c_size_t(len(data)))


def read(address, nbytes):
    data = ctypes.create_string_buffer(nbytes)
    call("cuMemcpyDtoH_v2", data, _Pointer(address), ctypes.c_size_t(nbytes))
    return data.raw
