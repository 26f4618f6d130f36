"""Fetches Debian's package of an older nvcc by its hash and lays out what compiles to PTX as NVIDIA does.

usage: fetch_nvcc.py PATH_IN_THE_ARCHIVE SHA256 DESTINATION

There is no nvcc 12 on PyPI, only its headers. The archive keeps a version as long as it is the newest one; snapshot keeps
all of them.
"""

import hashlib
import io
import os
import sys
import tarfile
import urllib.request

ARCHIVES = ["http://deb.debian.org/debian/", "https://snapshot.debian.org/archive/debian/20251101T000000Z/"]
HOME = "usr/lib/nvidia-cuda-toolkit/"
PLACES = {
    "usr/bin/cudafe++": "bin/cudafe++",
    "usr/bin/fatbinary": "bin/fatbinary",
    HOME + "bin/nvcc": "bin/nvcc",
    HOME + "bin/cicc": "nvvm/bin/cicc",
    HOME + "libdevice/libdevice.10.bc": "nvvm/libdevice/libdevice.10.bc",
}
PROFILE = """TOP              = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH            += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES        += "-I$(TOP)/include" $(_SPACE_)
"""


def download(path, sha256):
    failures = []
    for archive in ARCHIVES:
        try:
            content = urllib.request.urlopen(archive + path, timeout=60).read()
        except OSError as error:
            failures.append(f"{archive}: {error}")
            continue
        found = hashlib.sha256(content).hexdigest()
        if found == sha256:
            return content
        failures.append(f"{archive}: the hash is {found}")
    raise RuntimeError("; ".join(failures))


def data_of(package):
    """The archive of files within a Debian package, which is an `ar` of three members."""
    at = 8
    while at + 60 <= len(package):
        name, size = package[at : at + 16].decode().strip(), int(package[at + 48 : at + 58])
        if name.startswith("data.tar"):
            return package[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
    raise RuntimeError("the package holds no files")


def put(destination, place, content):
    target = os.path.join(destination, place)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(f"{target}.{os.getpid()}", "wb") as file:
        file.write(content)
    os.chmod(file.name, 0o755 if content.startswith((b"\x7fELF", b"#!")) else 0o644)
    os.replace(file.name, target)


def main(path, sha256, destination):
    files = 0
    with tarfile.open(fileobj=io.BytesIO(data_of(download(path, sha256)))) as archive:
        for member in archive:
            name = member.name.removeprefix("./")
            place = PLACES.get(name)
            if name.startswith(HOME + "bin/crt/"):
                place = "bin/crt/" + os.path.basename(name)
            if place and member.isfile():
                put(destination, place, archive.extractfile(member).read())
                files += place in PLACES.values()
    if files != len(PLACES):
        raise RuntimeError("the package lacks some of what is needed")
    put(destination, "bin/nvcc.profile", PROFILE.encode())


try:
    main(*sys.argv[1:])
except Exception as error:  # one line for the person who reads it, whatever went wrong
    sys.exit(f"{sys.argv[1]}: {error}")
