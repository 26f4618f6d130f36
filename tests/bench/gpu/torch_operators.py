#!/usr/bin/env python3
"""Every operator of PyTorch's own database of operators, natively and through Bulkhead, bit for bit.

Each runs with PyTorch's own sample inputs, forwards and, where it can, backwards. Operators that give other bits in
each native run (they add in any order) are told apart from those that differ through Bulkhead only: these make the exit
status. Needs an NVIDIA GPU, PyTorch, and the package expecttest, which PyTorch's database imports.
"""

import argparse
import hashlib
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import warnings

STAGE = pathlib.Path(__file__).resolve().parents[3] / "target/stage"
SAMPLES = 4
# Their results are whatever was in memory.
UNDEFINED = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "empty_permuted")


def digest(value):
    import torch
    from torch.utils._pytree import tree_flatten

    digested = hashlib.sha1()
    for leaf in tree_flatten(value)[0]:
        if not isinstance(leaf, torch.Tensor):
            digested.update(repr(leaf).encode())
            continue
        leaf = leaf.detach().resolve_conj().resolve_neg()
        digested.update(str((leaf.dtype, tuple(leaf.shape), leaf.device.type)).encode())
        dense = leaf if leaf.layout == torch.strided else leaf.to_dense()
        flat = dense.cpu().clone(memory_format=torch.contiguous_format).reshape(-1)
        digested.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return digested.hexdigest()[:12]


def digests_of(operator, dtype):
    """What an operator gives, forwards and backwards, for a few inputs."""
    import torch
    from torch.utils._pytree import tree_flatten

    def tensors(tree):
        return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor) and leaf.requires_grad]

    backwards = dtype in operator.supported_backward_dtypes("cuda") and operator.supports_autograd
    torch.manual_seed(0)
    for sample in itertools.islice(operator.sample_inputs("cuda", dtype, requires_grad=backwards), SAMPLES):
        torch.manual_seed(1)
        given = (sample.input, sample.args, sample.kwargs)
        result = operator(sample.input, *sample.args, **sample.kwargs)
        yield digest(result)
        results, inputs = tensors(result), [tensor for tensor in tensors(given) if tensor.is_leaf]
        if backwards and results and inputs:
            sums = [tensor.abs().sum() if tensor.is_complex() else tensor.sum() for tensor in results]
            gradients = torch.autograd.grad(sums, inputs, allow_unused=True)
            yield digest([gradient for gradient in gradients if gradient is not None])
    torch.cuda.synchronize()


def run(dtype, only, seconds):
    """The digests of all operators, on whatever CUDA driver this process has."""
    warnings.simplefilter("ignore")
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    dtype, start, found = getattr(torch, dtype), time.monotonic(), {}
    for operator in op_db:
        name = operator.name + (f".{operator.variant_test_name}" if operator.variant_test_name else "")
        wanted = name not in UNDEFINED and (not only or any(part in name for part in only))
        if not wanted or dtype not in operator.supported_dtypes("cuda") or time.monotonic() - start > seconds:
            continue
        found[name] = digests = []
        try:
            digests.extend(digests_of(operator, dtype))
        except Exception as error:  # what fails natively must fail here, and in the same way
            digests.append(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    return found


def side(prefix, options, dtype):
    with tempfile.TemporaryDirectory() as directory:
        out = pathlib.Path(directory) / "digests.json"
        command = [sys.executable, __file__, "--inside", out, "--dtypes", dtype, "--seconds", options.seconds]
        subprocess.run([*map(str, [*prefix, *command]), *options.only], check=True)
        return json.loads(out.read_text())


def compare(options, dtype):
    """How many operators differ through Bulkhead alone."""
    zone = [options.stage / "bin/bulkhead", "run", "--backend", "nvidia", "--memory", options.memory, "--"]
    native, ours = side([], options, dtype), side(zone, options, dtype)
    both = native.keys() & ours.keys()
    different = sorted(name for name in both if native[name] != ours[name])
    again = {}
    if different:
        again = side([], argparse.Namespace(**{**vars(options), "only": different}), dtype)
    only_ours = [name for name in different if again.get(name) == native[name]]
    results = sum(len(native[name]) for name in both)
    same, restless = len(both) - len(different), len(different) - len(only_ours)
    print(f"{dtype}: {len(both)} operators with {results} results; {same} the same to the bit, {restless} of other "
          f"bits in each native run, {len(only_ours)} different through Bulkhead only", flush=True)
    for name in only_ours:
        pairs = [(a, b) for a, b in itertools.zip_longest(native[name], ours[name]) if a != b]
        print(f"  {name}: natively {pairs[0][0]}, through Bulkhead {pairs[0][1]}")
    return len(only_ours)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=pathlib.Path, default=STAGE, help="directory with bin/ and lib/")
    parser.add_argument("--memory", default="40GiB", help="memory of the zone")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16", "complex64", "int64"])
    parser.add_argument("--seconds", type=float, default=600, help="leave out what is not reached by then")
    parser.add_argument("--inside", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("only", nargs="*", help="only operators whose name has this in it")
    options = parser.parse_args()
    if options.inside:
        options.inside.write_text(json.dumps(run(options.dtypes[0], options.only, options.seconds)))
        return 0
    return min(1, sum([compare(options, dtype) for dtype in options.dtypes]))


if __name__ == "__main__":
    sys.exit(main())
