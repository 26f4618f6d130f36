"""Fetches one wheel by its hash and unpacks what lies below its nvidia/<name>/ directory.

usage: fetch_wheel.py PACKAGE VERSION SHA256 DESTINATION [ONLY_THIS_SUBDIRECTORY]

With * for the subdirectory, the whole wheel is unpacked, whoever made it.

pip is used where it is installed, because it knows the machine's index and proxy; a machine with nothing but Python's
standard library asks the index itself. The hash is checked either way. Files are put in place by renaming, so that two
of these may run at once.
"""

import hashlib
import html
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
import zipfile

PLATFORMS = ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]


def with_pip(package, version, sha256, directory):
    with open(os.path.join(directory, "requirements.txt"), "w") as requirements:
        requirements.write(f"{package}=={version} --hash=sha256:{sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--require-hashes", "-r", requirements.name, "-d", directory]
    command += [argument for platform in PLATFORMS for argument in ("--platform", platform)]
    # What comes in is seen to come in by whoever looks at the destination.
    environment = {**os.environ, "TMPDIR": directory}
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        raise RuntimeError(said[-1] if said else "pip failed")
    return next(os.path.join(directory, name) for name in os.listdir(directory) if name.endswith(".whl"))


def without_pip(package, sha256, directory):
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/") + f"/{package}/"
    page = urllib.request.urlopen(index, timeout=60).read().decode()
    link = re.search(rf'href="([^"#]+\.whl)#sha256={sha256}"', page)
    if not link:
        raise RuntimeError(f"{index} lists no wheel with the pinned hash {sha256}")
    wheel = os.path.join(directory, "wheel.whl")
    urllib.request.urlretrieve(urllib.parse.urljoin(index, html.unescape(link.group(1))), wheel)
    return wheel


def unpack(wheel, destination, only):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith("/") or ".." in name or name.startswith("/"):
                continue
            path = name
            if only != "*":
                parts = name.split("/", 2)
                if len(parts) < 3 or parts[0] != "nvidia" or parts[2].startswith("."):
                    continue
                if only and not parts[2].startswith(only + "/"):
                    continue
                path = parts[2]
            target = os.path.join(destination, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            content = archive.read(name)
            with open(f"{target}.{os.getpid()}", "wb") as file:
                file.write(content)
            # Wheels do not carry the executable bit.
            os.chmod(file.name, 0o755 if content.startswith((b"\x7fELF", b"#!")) else 0o644)
            os.replace(file.name, target)


def main(package, version, sha256, destination, only=None):
    os.makedirs(destination, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination) as directory:
        if importlib.util.find_spec("pip"):
            wheel = with_pip(package, version, sha256, directory)
        else:
            wheel = without_pip(package, sha256, directory)
        with open(wheel, "rb") as file:
            found = hashlib.sha256(file.read()).hexdigest()
        if found != sha256:
            raise RuntimeError(f"the wheel's hash is {found}, pinned is {sha256}")
        unpack(wheel, destination, only)


try:
    main(*sys.argv[1:])
except Exception as error:  # one line for the person who reads it, whatever went wrong
    sys.exit(f"{sys.argv[1]} {sys.argv[2]}: {error}")
