"""Rows of the benchmark that need PyTorch: one line each, name and value, tab between.

Without arguments all rows run; with some, those whose name contains one of them. What is not installed (torchvision,
transformers) leaves its rows out.
"""

import sys
import time

import torch

imported = time.time()
torch.ones(1, device="cuda")
torch.cuda.synchronize()
READY = time.time() - imported


def rate(count, work, warm=1):
    """Calls a second, after a warm-up."""
    for _ in range(warm):
        work()
    torch.cuda.synchronize()
    begin = time.time()
    for _ in range(count):
        work()
    torch.cuda.synchronize()
    return count / (time.time() - begin)


def ready():
    return READY


def matmul():
    a, b = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return rate(2000, lambda: a @ b, 10)


def add():
    x = torch.zeros(1024, device="cuda")
    return rate(30000, lambda: x.add_(1), 100)


def item():
    x = torch.zeros(1024, device="cuda")
    return rate(5000, lambda: x[0].item(), 100)


def mlp():
    layers = []
    for _ in range(6):
        layers += [torch.nn.Linear(512, 512), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batch = torch.randn(64, 512, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=False)
        model(batch).square().mean().backward()
        optimizer.step()

    return model, batch, step


def mlp_training():
    return rate(500, mlp()[2], 20)


def mlp_inference():
    model, batch, _ = mlp()
    with torch.no_grad():
        return rate(2000, lambda: model(batch), 20)


def mlp_graph():
    step = mlp()[2]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return rate(2000, graph.replay, 20)


def resnet(batch, count):
    import torchvision

    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    images = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch,), device="cuda")
    loss = torch.nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            value = loss(model(images), labels)
        value.backward()
        optimizer.step()

    return rate(count, step, 5)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config()).cuda()


def gpt2_training():
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    tokens = torch.randint(0, 50000, (8, 512), device="cuda")

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            value = model(tokens, labels=tokens).loss
        value.backward()
        optimizer.step()

    return rate(40, step, 5)


def gpt2_decoding():
    model = gpt2().eval().to(torch.bfloat16)
    prompt = torch.randint(0, 50000, (1, 16), device="cuda")

    def generate():
        model.generate(prompt, max_new_tokens=64, min_new_tokens=64, do_sample=False, pad_token_id=0)

    return 64 * rate(4, generate, 1)


def resnet_inference():
    import torchvision

    model = torchvision.models.resnet50().eval().cuda()
    image = torch.randn(1, 3, 224, 224, device="cuda")
    with torch.no_grad():
        return rate(600, lambda: model(image), 30)


def loader():
    """Input from worker processes, through pinned memory, beside the model that reads it."""
    data = torch.utils.data.TensorDataset(torch.randn(4096, 3, 64, 64), torch.randint(0, 10, (4096,)))
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(10)).cuda()
    batches = torch.utils.data.DataLoader(data, 64, num_workers=4, pin_memory=True, persistent_workers=True)

    def epoch():
        for images, labels in batches:
            images, labels = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
            torch.nn.functional.cross_entropy(model(images), labels).backward()

    return len(batches) * rate(6, epoch, 1)


def compiled(mode):
    model, batch, _ = mlp()
    fast = torch.compile(model, mode=mode)
    with torch.no_grad():
        return rate(2000, lambda: fast(batch), 20)


def llama():
    """A decoder as large language models are: RMS norm, rotary positions, grouped heads, SwiGLU; one token at a time."""
    width, heads, groups, depth, length = 1024, 16, 4, 12, 512
    size = width // heads
    functional = torch.nn.functional
    new = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02
    layers = [
        dict(qkv=new(width + 2 * groups * size, width), out=new(width, width), up=new(8 * width, width), down=new(width, 4 * width),
             norms=torch.ones(2, width, device="cuda", dtype=torch.bfloat16),
             cache=torch.zeros(2, 1, groups, length, size, device="cuda", dtype=torch.bfloat16))
        for _ in range(depth)
    ]
    words = new(32000, width)
    angles = torch.outer(torch.arange(length), 10000 ** (-torch.arange(0, size, 2) / size)).cuda()
    turn = torch.polar(torch.ones_like(angles), angles)

    def rotate(x, at):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turn[at]).flatten(-2).to(x.dtype)

    def step(token, at):
        x = words[token]
        for layer in layers:
            h = functional.rms_norm(x, (width,), layer["norms"][0])
            q, k, v = (h @ layer["qkv"].T).split([width, groups * size, groups * size], -1)
            q, k = rotate(q.view(1, heads, 1, size), at), rotate(k.view(1, groups, 1, size), at)
            layer["cache"][0, :, :, at : at + 1] = k
            layer["cache"][1, :, :, at : at + 1] = v.view(1, groups, 1, size)
            keys, values = layer["cache"][:, :, :, : at + 1]
            h = functional.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
            x = x + h.reshape(1, width) @ layer["out"].T
            gate, up = (functional.rms_norm(x, (width,), layer["norms"][1]) @ layer["up"].T).chunk(2, -1)
            x = x + (functional.silu(gate) * up) @ layer["down"].T
        return (x @ words.T).argmax(-1)

    def generate():
        token = torch.zeros(1, dtype=torch.long, device="cuda")
        for at in range(64):
            token = step(token, at)
        token.item()

    with torch.no_grad():
        return 64 * rate(6, generate, 2)


def copies():
    """Large copies of pageable memory in one thread, matrix products in another."""
    import threading

    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    host, there = torch.ones(64 << 20, dtype=torch.float32), torch.empty(64 << 20, device="cuda")
    stop = threading.Event()

    def copy():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            while not stop.is_set():
                there.copy_(host)
                side.synchronize()

    thread = threading.Thread(target=copy)
    thread.start()
    try:
        return rate(2000, lambda: a @ a, 10)
    finally:
        stop.set()
        thread.join()


ROWS = [
    ("PyTorch ready s", ready),
    ("bf16 matmul 4096 it/s", matmul),
    ("x.add_(1) it/s", add),
    ("x.item() it/s", item),
    ("MLP training eager it/s", mlp_training),
    ("MLP inference eager it/s", mlp_inference),
    ("MLP training, CUDA graph replay it/s", mlp_graph),
    ("ResNet-50 training bf16, batch 8 it/s", lambda: resnet(8, 100)),
    ("ResNet-50 training bf16, batch 128 it/s", lambda: resnet(128, 60)),
    ("GPT-2 training bf16, 8x512 it/s", gpt2_training),
    ("GPT-2 decoding tokens/s", gpt2_decoding),
    ("ResNet-50 inference eager, batch 1 it/s", resnet_inference),
    ("Llama-style decoding tokens/s", llama),
    ("DataLoader with pinned memory batches/s", loader),
    ("torch.compile MLP inference it/s", lambda: compiled("default")),
    ("torch.compile reduce-overhead it/s", lambda: compiled("reduce-overhead")),
    ("bf16 matmul 4096 beside pageable copies it/s", copies),
]

for name, row in ROWS:
    if len(sys.argv) > 1 and not any(wanted in name for wanted in sys.argv[1:]):
        continue
    torch.manual_seed(0)
    try:
        print(f"{name}\t{row():.3f}", flush=True)
    except ImportError as missing:
        print(f"{name}: left out ({missing})", file=sys.stderr)
    torch.cuda.empty_cache()
