"""What the benchmarks of several zones share: a proxy of their own, and tenants that are spoken to."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

TARGET = pathlib.Path(__file__).resolve().parents[3] / "target"


def environment(options, zone):
    """That of a tenant: in a zone, or natively without one."""
    variables = dict(os.environ)
    if zone:
        variables["BULKHEAD_SOCKET"] = f"{options.state}/zones/{zone}/sock"
        variables["LD_LIBRARY_PATH"] = f"{options.stage / 'lib/bulkhead'}:{variables.get('LD_LIBRARY_PATH', '')}"
    return variables


def state_directory(name):
    """A directory for a proxy's state, which does not exist yet."""
    directory = tempfile.mkdtemp(prefix=f"bulkhead-{name}-")
    os.chmod(directory, 0o755)  # The broker runs as another user than root.
    return directory + "/state"


class Tenant:
    """A script that answers each line with a line of JSON."""

    def __init__(self, options, zone, script, *words, **variables):
        pipe = subprocess.PIPE
        command = [sys.executable, script, *map(str, words)]
        everything = environment(options, zone) | variables
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=everything)

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a tenant ended with {self.process.wait()}")
        return json.loads(line)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.hear()

    def end(self):
        self.process.kill()
        self.process.wait()


class Proxy:
    """One for the zones that a configuration file names."""

    def __init__(self, options, config, *words):
        self.options = options
        file = pathlib.Path(options.state + ".toml")
        file.write_text(config)
        self.log = open(options.state + ".log", "w")
        self.process = subprocess.Popen(
            [options.bulkhead, "proxy", "--backend", options.backend, "--state-dir", options.state, "--config", file,
             "--jail", options.jail, *words],
            stderr=self.log,
        )
        for _ in range(600):
            if pathlib.Path(options.state, "admin.sock").exists() and self.status():
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise SystemExit("the proxy does not start:\n" + pathlib.Path(self.log.name).read_text())

    def ask(self, *words):
        command = [self.options.bulkhead, *words, "--socket", self.options.state + "/admin.sock"]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def status(self):
        done = self.ask("status", "--json")
        return json.loads(done.stdout) if done.returncode == 0 and done.stdout.strip() else None

    def zones(self):
        return {zone["name"]: zone for zone in self.status()["zones"]}

    def set(self, zone, **settings):
        words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        done = self.ask("zones", "set", zone, *words)
        if done.returncode:
            raise SystemExit(done.stderr)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)
        if os.environ.get("BULKHEAD_BENCH_LOG"):
            print(pathlib.Path(self.log.name).read_text())
